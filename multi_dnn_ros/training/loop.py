"""The one training loop: detection, lanes and classification differ only in the loss and the score they hand to it."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

Batch = dict[str, Tensor]


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why. The last good checkpoint is untouched."""


class Batches(Protocol):
    """Where the loop gets its data: `len` batches an epoch, each a dict of tensors on the device, "image" among them.

    The same epoch number must give the same batches: that is what makes a resumed run equal to an uninterrupted one.
    """

    def __len__(self) -> int: ...
    def epoch(self, number: int) -> Iterator[Batch]: ...


Loss = Callable[[Any, Batch], Tensor]
Score = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True)
class Schedule:
    """How to train. Learning rate: linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017).

    ema: decay of the averaged weights that are scored and kept, 0 = none. score_every: epochs. patience: epochs without
    a better score after which it stops, 0 = never. mixed: bfloat16 autocast on CUDA. clip: largest gradient norm.
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
    mixed: bool = True
    clip: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.score_every < 1 or not self.lr > 0:
            raise ValueError(
                f"epochs = {self.epochs}, score_every = {self.score_every}, lr = {self.lr}: must be positive"
            )
        if self.optimizer not in ("adamw", "sgd"):
            raise ValueError(f"optimizer = {self.optimizer!r}: not one of adamw, sgd")


@dataclass
class Outcome:
    """best: scores of the kept weights. epoch: the one they come from. history: a row an epoch."""

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
    progress: bool = True,
) -> Outcome:
    """Train `network` (on its device) and leave the weights with the best score in it.

    score: called with the network in eval mode; `main` names the score that decides, larger is better.
    checkpoint: written after every epoch, beside and then renamed; a run that finds one goes on behind it and ends with
    the same weights as a run that was never stopped (bit for bit on the CPU with the same number of threads).
    Raises TrainingError for a loss that is not finite and for a checkpoint of another network or schedule.
    """
    torch.manual_seed(schedule.seed)
    device = next(network.parameters()).device
    average = copy.deepcopy(network) if schedule.ema else network
    optimizer = _optimizer(network, schedule)
    outcome = Outcome()
    best_weights = _weights(average)
    first = 0
    if checkpoint is not None and checkpoint.exists():
        state = _load(checkpoint, network, schedule)
        network.load_state_dict(state["network"])
        average.load_state_dict(state["average"])
        optimizer.load_state_dict(state["optimizer"])
        best_weights, first = state["best_weights"], state["next_epoch"]
        outcome = Outcome(state["best"], state["best_epoch"], state["history"])
        torch.set_rng_state(state["rng"])
    steps = len(batches)
    mixed = schedule.mixed and device.type == "cuda"
    for epoch in range(first, schedule.epochs):
        if schedule.patience and outcome.epoch >= 0 and epoch - 1 - outcome.epoch >= schedule.patience:
            break
        started = time.monotonic()
        network.train()
        total = torch.zeros((), device=device)
        bar = tqdm(
            batches.epoch(epoch), f"epoch {epoch + 1}/{schedule.epochs}", steps, disable=not progress, mininterval=2.0
        )
        for k, batch in enumerate(bar):
            step = epoch * steps + k
            _set_rate(optimizer, schedule, step / steps)
            image = batch["image"]
            if device.type == "cuda":
                image = image.to(memory_format=torch.channels_last)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
                outputs = network(image)
            value = loss(outputs, batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), schedule.clip)
            optimizer.step()
            if schedule.ema:
                _average(average, network, min(schedule.ema, (1 + step) / (10 + step)))
            total += value.detach()
        mean = float(total) / max(steps, 1)
        if not math.isfinite(mean):
            raise TrainingError(
                f"epoch {epoch + 1}: the loss is {mean}; lower lr (now {schedule.lr}) or look at the data"
            )
        row = {"epoch": float(epoch), "loss": mean}
        if (epoch + 1) % schedule.score_every == 0 or epoch + 1 == schedule.epochs:
            average.eval()
            scores = score(average)
            row.update(scores)
            if outcome.epoch < 0 or scores[main] > outcome.best[main]:
                outcome.best, outcome.epoch, best_weights = scores, epoch, _weights(average)
        outcome.history.append(row)
        if progress:
            text = " ".join(f"{name}={value:.4g}" for name, value in row.items())
            tqdm.write(f"{text} seconds={time.monotonic() - started:.1f}")
        if checkpoint is not None:
            _save(checkpoint, network, average, optimizer, best_weights, outcome, epoch + 1, schedule)
    network.load_state_dict(best_weights)
    network.eval()
    return outcome


def _optimizer(network: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    """Weight decay on matrices and kernels only, as usual: biases and normalisation keep their own scale."""
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": schedule.weight_decay},
        {"params": [p for p in network.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if schedule.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=schedule.lr, momentum=schedule.momentum, nesterov=True)
    return torch.optim.AdamW(groups, lr=schedule.lr)


def _set_rate(optimizer: torch.optim.Optimizer, schedule: Schedule, epoch: float) -> None:
    warm = min(schedule.warmup_epochs, schedule.epochs / 2)
    if epoch < warm:
        share = 0.02 + 0.98 * epoch / warm
    else:
        share = 0.5 * (1 + math.cos(math.pi * (epoch - warm) / (schedule.epochs - warm)))
    for group in optimizer.param_groups:
        group["lr"] = schedule.lr * share


@torch.no_grad()
def _average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Exponential moving average of the weights; buffers are taken as they are."""
    kept, new = ([p.detach() for p in module.parameters()] for module in (average, network))
    torch._foreach_lerp_(kept, new, 1.0 - decay)
    for a, b in zip(average.buffers(), network.buffers(), strict=True):
        a.copy_(b)


def _weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _save(
    path: Path,
    network: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    best_weights: dict[str, Tensor],
    outcome: Outcome,
    next_epoch: int,
    schedule: Schedule,
) -> None:
    state = {
        "network": network.state_dict(),
        "average": average.state_dict(),
        "optimizer": optimizer.state_dict(),
        "best_weights": best_weights,
        "best": outcome.best,
        "best_epoch": outcome.epoch,
        "history": outcome.history,
        "next_epoch": next_epoch,
        "rng": torch.get_rng_state(),
        "schedule": json.dumps(asdict(schedule), sort_keys=True),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    torch.save(state, beside)
    os.replace(beside, path)


def _load(path: Path, network: nn.Module, schedule: Schedule) -> dict[str, Any]:
    device = next(network.parameters()).device
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        state["rng"] = state["rng"].cpu()
        written = state["schedule"]
    except Exception as error:  # torch.load raises whatever the damaged bytes lead it to
        raise TrainingError(f"{path}: not a checkpoint of this loop ({type(error).__name__}: {error})") from error
    if written != json.dumps(asdict(schedule), sort_keys=True):
        raise TrainingError(f"{path}: made with another schedule: {written}; remove it or use that one")
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    stored = {name: tuple(value.shape) for name, value in state["network"].items()}
    if shapes != stored:
        different = sorted(name for name in shapes.keys() | stored.keys() if shapes.get(name) != stored.get(name))
        raise TrainingError(f"{path}: checkpoint of another network: {different[0]} differs, {len(different)} in all")
    return state
