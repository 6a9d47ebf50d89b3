"""The training loop for all tasks. Detection, lanes and classification differ only in loss and score."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from tqdm import tqdm

from multi_dnn_ros import __version__
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.models.finite_weights import non_finite_tensor
from multi_dnn_ros.settings.precisions import TRAINING_PRECISIONS
from multi_dnn_ros.training import checkpoint as checkpoints
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.averaging import Averaging, fit_statistics
from multi_dnn_ros.training.batch_norm import global_batch_norm, is_global
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.vision.results import OutputError

__all__ = ["Batch", "Batches", "Loss", "Outcome", "Schedule", "Score", "TrainingError", "set_training",
           "train"]  # fmt: skip

log = logging.getLogger(__name__)

Batch = dict[str, Tensor]


class Batches(Protocol):
    """Data of the loop: `len` batches per epoch, each a dict of tensors on the device, including "image".

    The same epoch number must give the same batches, so that a resumed run equals an uninterrupted one. batch_size:
    images per batch, summed over all processes; each process gets its share of every batch.
    """

    @property
    def batch_size(self) -> int: ...
    def __len__(self) -> int: ...
    def epoch(self, number: int) -> Iterator[Batch]: ...


Loss = Callable[[Any, Batch], Tensor]
Score = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True)
class Schedule:
    """How to train. Learning rate: linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017).

    ema: decay of the averaged weights that are scored and kept, 0 = none. score_every: epochs between scores. patience:
    stop after this many epochs without improvement, 0 = never. precision: fp32, bf16 or fp16 (with loss scaling); the
    latter two for the forward pass on CUDA only. clip: maximum gradient norm. mix: for classifiers, share of mixed
    images, see augment_classes.
    """

    epochs: int
    lr: float
    optimizer: str = "adamw"
    weight_decay: float = 0.02
    momentum: float = 0.9
    warmup_epochs: float = 1.0
    ema: float = 0.999
    score_every: int = 1
    patience: int = 0
    precision: str = "bf16"
    clip: float = 10.0
    seed: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.score_every < 1 or not 0 < self.lr < math.inf:
            raise ValueError(
                f"epochs = {self.epochs}, score_every = {self.score_every}, lr = {self.lr}: must be positive"
            )
        if self.optimizer not in ("adamw", "sgd"):
            raise ValueError(f"optimizer = {self.optimizer!r}: not one of adamw, sgd")
        if self.precision not in TRAINING_PRECISIONS:
            raise ValueError(f"precision = {self.precision!r}: not one of {', '.join(TRAINING_PRECISIONS)}")
        if not 0.0 <= self.mix <= 1.0:
            raise ValueError(f"mix = {self.mix}: must be 0 to 1")


@dataclass
class Outcome:
    """best: scores of the kept weights. epoch: their epoch; -1: the initial weights. history: one row per epoch.

    images_per_s: speed of each epoch trained since the last start, over all processes, without scoring.
    """

    best: dict[str, float] = field(default_factory=dict)
    epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)
    images_per_s: list[float] = field(default_factory=list)


def train(
    network: nn.Module,
    batches: Batches,
    loss: Loss,
    score: Score,
    schedule: Schedule,
    *,
    main: str,
    checkpoint: Path | None = None,
    checkpoint_every: int = 1,
    identity: Mapping[str, Any] | None = None,
    progress: bool = True,
    batch_norm: str = "auto",
) -> Outcome:
    """Train `network` on its device. Afterwards it has the weights with the best score.

    These may be the initial weights, because short training can make a slightly decomposed network worse.

    score: called with the network in eval mode; `main` names the deciding score, larger is better. checkpoint: written
    atomically after every `checkpoint_every` epochs; an existing one is resumed from, and the result equals that of an
    uninterrupted run (bit for bit on the CPU with the same number of threads): the order of the data and all random
    numbers of an epoch follow from the seed and the epoch number. identity: what defines the run besides the schedule,
    the initial weights and the versions of this package and PyTorch (data, losses), as JSON values; a checkpoint of
    another run is rejected. Under torchrun (see `distributed`) all processes call it; rank 0 scores, writes and shows
    progress. batch_norm: `local`: each process normalizes over its own images; `global`: over the whole batch; `auto`:
    global if a process has fewer than SMALL_BATCH images.

    An epoch after which a weight or a statistic of batch normalization is not finite is not scored; a warning names the
    tensor. Raises TrainingError for a loss or an initial weight that is not finite, and for a checkpoint of another run
    (naming what differs).
    """
    whole_batch = is_global(batch_norm, batches.batch_size, distributed.world())
    run = {
        **(identity or {}),
        "schedule": asdict(schedule),
        "processes": distributed.world(),
        "batch_norm": "global" if whole_batch else "local",
        "initial weights": weights_digest(network.state_dict()),
        "versions": {"multi_dnn_ros": __version__, "torch": torch.__version__},
    }
    with global_batch_norm(*([network] if whole_batch else [])):
        return _train(
            network, batches, loss, score, schedule, run, whole_batch,
            main=main, checkpoint=checkpoint, checkpoint_every=checkpoint_every, progress=progress,
        )  # fmt: skip


def _train(
    network: nn.Module, batches: Batches, loss: Loss, score: Score, schedule: Schedule, run: Mapping[str, Any],
    whole_batch: bool, *, main: str, checkpoint: Path | None, checkpoint_every: int, progress: bool,
) -> Outcome:  # fmt: skip
    """See `train`. run: identity of the run. whole_batch: whether `network` normalizes over all processes."""
    first_process = distributed.rank() == 0
    device = next(network.parameters()).device
    average = copy.deepcopy(network) if schedule.ema else network
    optimizer = make_optimizer(network, schedule)
    scaler = GradScaler(device.type, enabled=schedule.precision == "fp16" and device.type == "cuda")
    outcome = Outcome()
    best_weights = checkpoints.weights(average)
    first = 0
    if distributed.from_first(checkpoint is not None and checkpoint.exists()):
        assert checkpoint is not None
        state = checkpoints.load(checkpoint, network, run)
        network.load_state_dict(state["network"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        best_weights, first = state["best_weights"], state["next_epoch"]
        outcome = Outcome(state["best"], state["best_epoch"], state["history"])
        if progress and first_process:
            tqdm.write(f"{checkpoint}: continues after epoch {first} of {schedule.epochs}")
    else:
        set_training(average, False)
        if (unusable := non_finite_tensor(best_weights)) is not None:
            raise TrainingError(f"before training: {unusable} of the network is not finite")
        outcome.best = distributed.from_first(_scores(score, average, "before training") if first_process else {})
    unused = bool(_unused(network, batches, loss))
    passes = distributed.replicated(network, unused)
    steps = len(batches)
    parameters = list(network.parameters())  # collected once: this takes as long as some of the steps below
    averaging = Averaging(average, network) if schedule.ema else None
    for epoch in range(first, schedule.epochs):
        if schedule.patience and _epochs_since_best(outcome.history, main) >= schedule.patience:
            break
        started = time.monotonic()
        torch.manual_seed((schedule.seed * 100_003 + epoch) * 1_009 + distributed.rank())
        set_training(network, True)
        total = torch.zeros((), device=device)
        bar = tqdm(
            batches.epoch(epoch), f"epoch {epoch + 1}/{schedule.epochs}", steps,
            disable=None if progress and first_process else True, mininterval=2.0,
        )  # fmt: skip
        for k, batch in enumerate(bar):
            step = epoch * steps + k
            set_rate(optimizer, schedule, step / steps)
            image = _channels_last(batch["image"])
            with autocast(device, schedule.precision):
                outputs = passes(image)
            # Gradients are averaged over the processes, whose shares of the batch may differ by one image.
            value = loss(outputs, batch) * (len(image) * distributed.world() / batches.batch_size)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, schedule.clip)
            scaler.step(optimizer)
            scaler.update()
            if averaging is not None:
                averaging.step(min(schedule.ema, (1 + step) / (10 + step)))
            total += value.detach()
        mean = float(distributed.mean(total)) / max(steps, 1)  # waits for the GPU
        outcome.images_per_s.append(steps * batches.batch_size / (time.monotonic() - started))
        if not math.isfinite(mean):
            raise TrainingError(
                f"epoch {epoch + 1}: the loss is {mean}; lower lr (now {schedule.lr}) or check the data"
            )
        row = {"epoch": float(epoch), "loss": mean}
        if (epoch + 1) % schedule.score_every == 0 or epoch + 1 == schedule.epochs:
            # With whole_batch, all processes compute the statistics together.
            if schedule.ema and (first_process or whole_batch):
                fit_statistics(average, (batch["image"] for batch in batches.epoch(epoch)), schedule.precision)
            set_training(average, False)
            when = f"epoch {epoch + 1}, lr {schedule.lr}"
            # The loss can be finite, because training normalizes by the statistics of each batch.
            unusable = distributed.from_first(non_finite_tensor(average.state_dict()) if first_process else None)
            if unusable is not None:
                if first_process:
                    log.warning("%s: not scored and not kept, because %s is not finite", when, unusable)
            else:
                scores = distributed.from_first(_scores(score, average, when) if first_process else {})
                row.update(scores)
                if _is_better(scores[main], outcome, main):
                    outcome.best, outcome.epoch, best_weights = scores, epoch, checkpoints.weights(average)
        outcome.history.append(row)
        if progress and first_process:
            # Numbered from 1, as in the other lines about epochs.
            text = " ".join(f"{name}={value:.4g}" for name, value in {**row, "epoch": float(epoch + 1)}.items())
            speed = f"images/s={outcome.images_per_s[-1]:.4g}"
            tqdm.write(f"{text} {speed} seconds={time.monotonic() - started:.1f}")
        last = epoch + 1 == schedule.epochs
        due = (epoch + 1) % checkpoint_every == 0 or last
        if checkpoint is not None and first_process and due:
            state = {
                "network": network.state_dict(),
                "average": average.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "best_weights": best_weights,
                "best": outcome.best,
                "best_epoch": outcome.epoch,
                "history": outcome.history,
                "next_epoch": epoch + 1,
            }
            checkpoints.save(checkpoint, state, run)
    distributed.tensors_from_first(best_weights)
    network.load_state_dict(best_weights)
    set_training(network, False)
    return outcome


def _unused(network: nn.Module, batches: Batches, loss: Loss) -> list[str]:
    """Names of the weights that the loss does not depend on; empty if there is only one process.

    DistributedDataParallel waits for the gradient of every weight, unless its option find_unused_parameters is set.
    """
    if distributed.world() == 1:
        return []
    batch = next(iter(batches.epoch(0)))
    probe = copy.deepcopy(network)  # a forward pass changes the batch normalization statistics
    set_training(probe, True)
    trained = {name: weight for name, weight in probe.named_parameters() if weight.requires_grad}
    value = loss(probe(_channels_last(batch["image"])), batch)
    gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    unused = [name for name, gradient in zip(trained, gradients, strict=True) if gradient is None]
    return list(distributed.from_first(unused))


def _is_better(score: float, kept: Outcome, main: str) -> bool:
    """Whether the score beats the best so far. A score equal to that of the initial weights counts as better."""
    best = kept.best[main]
    return math.isnan(best) or score > best or (score == best and kept.epoch < 0)


def _scores(score: Score, network: nn.Module, when: str) -> dict[str, float]:
    """The scores of the network. Raises TrainingError if its outputs cannot be scored. when: start of the message."""
    try:
        return score(network)
    except OutputError as error:
        raise TrainingError(f"{when}: the network cannot be scored: {error}") from None


def _epochs_since_best(history: Sequence[Mapping[str, float]], main: str) -> int:
    """Epochs since the best one. The initial weights do not count, because reaching their score again takes time."""
    best, since = -math.inf, -1
    for row in history:
        if row.get(main, -math.inf) > best:
            best, since = row[main], int(row["epoch"])
    return len(history) - 1 - since if since >= 0 else 0


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


def _channels_last(image: Tensor) -> Tensor:
    """The image in the memory format that convolutions on a GPU prefer."""
    return image.to(memory_format=torch.channels_last) if image.is_cuda else image
