"""Repeats a training with several seeds, and with a control: the original network, retrained in the same way.

A retrained decomposed network is compared with a retrained original. Otherwise a gain from longer training would be
mistaken for accuracy that decomposition preserves.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.training.loop import Schedule
from multi_dnn_ros.training.retrain import Result
from multi_dnn_ros.training.trainable import Trainable

#: Trains a network by a schedule, with a checkpoint.
Train = Callable[[Trainable, Schedule, Path | None], Result]


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (0 for one value) of scores 0..1 over the seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.deviation:.4f}" if self.deviation else f"{self.mean:.4f}"


@dataclass(frozen=True)
class Controlled:
    """Results by seed, of the network and of its control (empty: none). best: index of the run whose weights are kept,
    which has the best score on the validation part.
    """

    seeds: tuple[int, ...]
    runs: tuple[Result, ...]
    control: tuple[Result, ...]
    best: int

    def before(self, name: str) -> float:
        """Score `name` on the test part before training."""
        return self.runs[0].before[name]

    def after(self, name: str) -> Spread:
        """Score `name` on the test part after training."""
        return Spread.of([run.after[name] for run in self.runs])

    def control_after(self, name: str) -> Spread | None:
        """Score `name` of the control on the test part after training; None without a control."""
        return Spread.of([run.after[name] for run in self.control]) if self.control else None

    def provenance(self) -> dict[str, Any]:
        """For the artifact and the report: the run that is kept, and all scores of all seeds."""
        kept = self.runs[self.best]
        content = {**kept.provenance(), "seed": self.seeds[self.best], "seeds": _by_seed(self.seeds, self.runs)}
        if self.control:
            content["control"] = _by_seed(self.seeds, self.control)
        return content


def _by_seed(seeds: Sequence[int], runs: Sequence[Result]) -> list[dict[str, Any]]:
    return [{"seed": seed, "before": run.before, "after": run.after} for seed, run in zip(seeds, runs, strict=True)]


def retrain_controlled(
    student: Callable[[], Trainable],
    control: Callable[[], Trainable] | None,
    schedule: Schedule,
    repeats: int,
    main: str,
    train: Train,
    checkpoint: Path | None = None,
) -> tuple[Trainable, Controlled]:
    """Train a new `student()`, and a new `control()` if given, with `repeats` seeds, the first being the schedule's.

    main: the deciding score. checkpoint: file of a single run; the names for several runs are derived from it. Returns
    the student of the run that is kept, and all results.
    """
    seeds = tuple(range(schedule.seed, schedule.seed + repeats))
    several = repeats > 1 or control is not None
    runs, controls = [], []
    best, kept = 0, None
    for k, seed in enumerate(seeds):
        seeded = replace(schedule, seed=seed)
        torch.manual_seed(seed)  # for networks that are built with random weights
        trained = student()
        runs.append(train(trained, seeded, _path_of(checkpoint, f"seed{seed}") if several else checkpoint))
        if kept is None or runs[k].outcome.best[main] > runs[best].outcome.best[main]:
            best, kept = k, trained
        if control is not None:
            controls.append(train(control(), seeded, _path_of(checkpoint, f"control.seed{seed}")))
    assert kept is not None
    return kept, Controlled(seeds, tuple(runs), tuple(controls), best)


def _path_of(path: Path | None, run: str) -> Path | None:
    return path and path.with_name(f"{path.stem}.{run}{path.suffix}")
