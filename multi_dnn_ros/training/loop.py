"""The training loop for all tasks, and its checkpoints. Detection, lanes and classification differ only in loss and
score.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from tqdm import tqdm

from multi_dnn_ros import __version__
from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import error_and_causes, summarize_error
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.weights import non_finite_tensor
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import Batches
from multi_dnn_ros.training.losses import Loss, autocast
from multi_dnn_ros.vision.results import OutputError

Score = Callable[[nn.Module], dict[str, float]]
#: Format of checkpoints.
_FORMAT = "multi_dnn_ros training 4"
#: Maximum number of characters shown of a value.
_SHOWN = 60


class TrainingError(ValueError):
    """Training cannot continue; the message says why. The last good checkpoint is unchanged."""


@dataclass(frozen=True)
class Schedule:
    """How to train. Learning rate: linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017).

    ema: decay of the averaged weights that are scored and kept, 0 = none. precision: fp32 or bf16, the latter for the
    forward pass on CUDA only. clip: maximum gradient norm.
    """

    epochs: int
    lr: float
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    momentum: float = 0.9
    warmup_epochs: float = 1.0
    ema: float = 0.999
    precision: str = "bf16"
    clip: float = 10.0
    seed: int = 0


@dataclass
class Outcome:
    """best: scores of the kept weights. epoch: their epoch; -1: the initial weights. history: one row per epoch."""

    best: dict[str, float] = field(default_factory=dict)
    epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    network: nn.Module,
    batches: Batches,
    loss: Loss,
    score: Score,
    schedule: Schedule,
    *,
    main: str,
    checkpoint: Path | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train `network` on its device. Afterwards it has the weights with the best score, which may be the initial ones,
    because short training can make a slightly decomposed network worse.

    score: called with the network in eval mode; `main` names the deciding score, larger is better. checkpoint: written
    atomically after every epoch; an existing one is resumed from, and the result equals that of an uninterrupted run
    (bit for bit on the CPU with the same number of threads): the order of the data and all random numbers of an epoch
    follow from the seed and the epoch number. identity: what defines the run besides the schedule, the initial weights
    and the versions of this package and PyTorch (data, losses), as JSON values; a checkpoint of another run is
    rejected. Under torchrun (see `distributed`) all processes call it; rank 0 scores, writes and shows progress.

    Raises TrainingError for a network without weights, for a loss, a weight or a statistic of batch normalization that
    is not finite, and for a checkpoint of another run (naming what differs).
    """
    if not any(weight.requires_grad for weight in network.parameters()):
        raise TrainingError("the network has no weights that can be trained")
    run = {
        **(identity or {}),
        "schedule": asdict(schedule),
        "processes": distributed.world(),
        "initial weights": weights_digest(network.state_dict()),
        "versions": {"multi_dnn_ros": __version__, "torch": torch.__version__},
    }
    parts: dict[str, Any] = {"network": network, "optimizer": make_optimizer(network, schedule)}
    if schedule.ema > 0.0:
        parts["average"] = _averaged(network, schedule.ema)
    kept = parts["average"].module if "average" in parts else network
    passes = distributed.replicated(network)
    outcome, first, best = Outcome(), 0, copy.deepcopy(kept.state_dict())
    if checkpoint is not None and distributed.from_first(checkpoint.exists()):
        state = load_checkpoint(checkpoint, run, next(network.parameters()).device)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        outcome, first, best = Outcome(**state["outcome"]), int(state["next_epoch"]), state["best_weights"]
        _say(f"{checkpoint}: continues after epoch {first} of {schedule.epochs}")
    else:
        outcome.best = _scores(score, kept, "before training")
    for epoch in range(first, schedule.epochs):
        started = time.monotonic()
        mean = _run_epoch(epoch, passes, batches, loss, schedule, parts["optimizer"], parts.get("average"))
        speed = len(batches) * batches.batch_size / (time.monotonic() - started)
        if not math.isfinite(mean):
            raise TrainingError(f"epoch {epoch + 1}: the loss is {mean}; lower lr ({schedule.lr}) or check the data")
        scores = _scores(score, kept, f"epoch {epoch + 1}, lr {schedule.lr}")
        outcome.history.append({"epoch": float(epoch), "loss": mean, **scores})
        # A score equal to that of the initial weights counts as better.
        if scores[main] > outcome.best[main] or (scores[main] == outcome.best[main] and outcome.epoch < 0):
            outcome.best, outcome.epoch, best = scores, epoch, copy.deepcopy(kept.state_dict())
        row = {"epoch": epoch + 1, "loss": mean, **scores, "images/s": speed, "seconds": time.monotonic() - started}
        _say(" ".join(f"{name}={value:.4g}" for name, value in row.items()))
        if checkpoint is not None and distributed.rank() == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            progress = {"best_weights": best, "outcome": asdict(outcome), "next_epoch": epoch + 1}
            save_checkpoint(checkpoint, state | progress, run)
    network.load_state_dict(best)
    set_training(network, False)
    return outcome


def _run_epoch(
    epoch: int, passes: nn.Module, batches: Batches, loss: Loss, schedule: Schedule, optimizer: torch.optim.Optimizer,
    average: AveragedModel | None,
) -> float:  # fmt: skip
    """Train an epoch; returns the mean of the losses."""
    network = passes.module if isinstance(passes, nn.parallel.DistributedDataParallel) else passes
    steps, parameters = len(batches), list(network.parameters())
    device = parameters[0].device
    torch.manual_seed((schedule.seed * 100_003 + epoch) * 1_009 + distributed.rank())
    set_training(network, True)
    total = torch.zeros((), device=device)
    bar = tqdm(
        batches.epoch(epoch), f"epoch {epoch + 1}/{schedule.epochs}", steps,
        disable=None if distributed.rank() == 0 else True, mininterval=2.0,
    )  # fmt: skip
    for step, batch in enumerate(bar, epoch * steps):
        set_rate(optimizer, schedule, step / steps)
        image = batch["image"]
        if image.is_cuda:
            image = image.to(memory_format=torch.channels_last)
        with autocast(device, schedule.precision):
            outputs = passes(image)
        # Gradients are averaged over the processes, whose shares of the batch may differ by one image.
        value = loss(outputs, batch) * (len(image) * distributed.world() / batches.batch_size)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, schedule.clip)
        optimizer.step()
        if average is not None:
            average.update_parameters(network)
        total += value.detach()
    return float(distributed.total(total)) / distributed.world() / max(steps, 1)  # waits for the GPU


def _averaged(network: nn.Module, ema: float) -> AveragedModel:
    """A moving average of weights and of the statistics of batch normalization, which go together.

    Its decay grows from a small one to `ema`, so that a short training is not averaged with its beginning.
    """

    def average(kept: Any, new: Any, _: Any) -> None:
        step = int(model.n_averaged)  # the one that is passed is on the GPU
        if kept[0].is_floating_point():
            torch._foreach_lerp_(kept, new, 1.0 - min(ema, (1 + step) / (10 + step)))
        else:  # counters
            torch._foreach_copy_(kept, new)

    model = AveragedModel(network, multi_avg_fn=average, use_buffers=True)
    return model


def _scores(score: Score, network: nn.Module, when: str) -> dict[str, float]:
    """The scores of rank 0's network, in all processes. Raises TrainingError if it cannot be scored. when: start of
    the message.
    """
    set_training(network, False)
    scores: dict[str, float] = {}
    if distributed.rank() == 0:
        # The loss can be finite, because training normalizes by the statistics of each batch.
        if (unusable := non_finite_tensor(network.state_dict())) is not None:
            raise TrainingError(f"{when}: {unusable} of the network is not finite")
        try:
            scores = score(network)
        except OutputError as error:
            raise TrainingError(f"{when}: the network cannot be scored: {error}") from None
    return dict(distributed.from_first(scores))


def _say(text: str) -> None:
    if distributed.rank() == 0:
        tqdm.write(text, sys.stderr)


def save_checkpoint(path: Path, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write atomically, with fsync: a kill at any moment leaves the last complete checkpoint.

    identity: what defines the run (schedule, data, network, versions), as JSON values; checked when loading. Raises
    TrainingError if it cannot be written, for example on a full disk.
    """
    try:
        with atomic_write(path, to_disk=True) as temporary, temporary.open("wb") as file:
            torch.save({**state, "format": _FORMAT, "identity": json.dumps(identity)}, file)
    except (OSError, RuntimeError) as error:
        # PyTorch's writer raises a RuntimeError about file positions on top of the system's error.
        reason = next((each for each in error_and_causes(error) if isinstance(each, OSError)), error)
        raise TrainingError(
            f"{path}: checkpoint cannot be written ({summarize_error(reason)}); the previous one is kept"
        ) from None


def load_checkpoint(path: Path, identity: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The state that was saved in the same run. Raises TrainingError for any other file, with the settings that differ;
    never executes code from the file.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if state["format"] != _FORMAT:
            raise ValueError(f"format is {state['format']!r}, expected {_FORMAT!r}")
        before = _flat(json.loads(state["identity"]))
    except Exception as error:  # torch.load raises arbitrary errors for damaged bytes
        raise TrainingError(
            f"{path}: not a checkpoint of this loop ({type(error).__name__}: {summarize_error(error)})"
        ) from None
    now = _flat(json.loads(json.dumps(identity)))
    changed = [
        f"{name} is {str(before.get(name, 'not set'))[:_SHOWN]} there, {str(now.get(name, 'not set'))[:_SHOWN]} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise TrainingError(
            f"{path}: checkpoint of another run: {'; '.join(changed[:5])}. Use the same settings, or remove the file"
        )
    return state


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under the names a.b."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def set_training(network: nn.Module, mode: bool) -> None:
    """Like nn.Module.train, also for exported programs, which do not support it: their mode was fixed at export."""
    try:
        network.train(mode)
    except NotImplementedError:
        for part in network.modules():
            part.training = False


def make_optimizer(network: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """Weight decay applies to matrices and kernels but, as usual, not to biases and normalization."""
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": schedule.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    # One fused kernel for all weights: with 100 million weights the step is memory-bound.
    fused = next(network.parameters()).is_cuda or None
    if schedule.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum, nesterov=True, fused=fused)
    return torch.optim.AdamW(groups, lr=schedule.lr, fused=fused)


def set_rate(optimizer: torch.optim.Optimizer, schedule: Schedule, epoch: float) -> None:
    """Set the learning rate of the schedule at `epoch`, which includes the fraction of the current epoch."""
    warm = min(schedule.warmup_epochs, schedule.epochs / 2)
    if epoch < warm:
        share = 0.02 + 0.98 * epoch / warm
    else:
        share = 0.5 * (1 + math.cos(math.pi * (epoch - warm) / (schedule.epochs - warm)))
    for group in optimizer.param_groups:
        group["lr"] = schedule.lr * share
