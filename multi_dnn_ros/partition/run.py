"""Run one batch as planned. Outputs have the order of the inputs, and are complete or not returned at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from statistics import median

import numpy as np

from multi_dnn_ros.partition.executor import Array, RunTimes
from multi_dnn_ros.partition.session import BatchSession, Share


@dataclass(frozen=True)
class BatchRun:
    """outputs: (batch, ...) each. rounds: the shares of each complete round. failures: one message per failed unit.

    repeated_images: number of images that another unit than the planned one computed, because the planned one failed.
    recovery_ms: time that this took. tolerance: the largest tolerance of the units.
    """

    outputs: tuple[Array, ...]
    rounds: tuple[tuple[Share, ...], ...]
    failures: tuple[str, ...]
    repeated_images: int
    recovery_ms: float
    tolerance: float

    @property
    def measured_ms(self) -> float:
        """Time until the last unit ended, median over the rounds; nan if no round was complete."""
        return median([_end(shares) for shares in self.rounds]) if self.rounds else float("nan")

    def utilization(self) -> dict[str, float]:
        """Fraction of a round in which each unit computed or copied images; median over the rounds."""
        parts: dict[str, list[float]] = {}
        for shares in self.rounds:
            for share in shares:
                parts.setdefault(share.unit, []).append((share.end_ms - share.begin_ms) / _end(shares))
        return {name: median(values) for name, values in parts.items()}

    def unit_ms(self) -> dict[str, float]:
        """Time of each unit's share; median over the rounds."""
        times: dict[str, list[float]] = {}
        for shares in self.rounds:
            for share in shares:
                times.setdefault(share.unit, []).append(share.end_ms - share.begin_ms)
        return {name: median(values) for name, values in times.items()}

    def parts_ms(self) -> dict[str, RunTimes]:
        """What each unit's time consists of: median of each part over the rounds."""
        times: dict[str, list[RunTimes]] = {}
        for shares in self.rounds:
            for share in shares:
                times.setdefault(share.unit, []).append(share.times)
        return {name: RunTimes(*map(median, zip(*map(astuple, each), strict=True))) for name, each in times.items()}


def run_rounds(
    session: BatchSession,
    images: Array,
    rounds: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BatchRun:
    """Run the plan of the session on `images` (N, 3, height, width) float32: once to warm up, then `rounds` times.

    If a unit fails, others compute its images, and no further round is measured. progress: called with the number of
    rounds that have run, and of all rounds including the one that warms up. Raises CommandError when no unit is
    left.
    """
    done: list[tuple[Share, ...]] = []
    session.load(images)
    for number in range(rounds + 1):
        progress(number, rounds + 1)
        computed = session.compute()
        failures = tuple(session.failures[name] for name in session.plan.images if name in session.failures)
        if failures:
            break
        if number:  # the first round warms up
            done.append(computed.shares)
    progress(rounds + 1, rounds + 1)
    return BatchRun(
        session.outputs(len(images)), tuple(done), failures, computed.repeated_images, computed.recovery_ms,
        session.tolerance,
    )  # fmt: skip


def _end(shares: Sequence[Share]) -> float:
    return max(share.end_ms for share in shares)


def disagreement(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """The largest difference between two lists of outputs, relative to the largest value of each reference output.

    Infinite if shapes differ, or if a value is finite in one list only.
    """
    worst = 0.0
    if len(outputs) != len(reference):
        return float("inf")
    for output, expected in zip(outputs, reference, strict=True):
        if output.shape != expected.shape or not np.array_equal(np.isfinite(output), np.isfinite(expected)):
            return float("inf")
        finite = np.isfinite(expected)
        if finite.any():
            scale = float(np.abs(expected[finite]).max()) or 1.0
            worst = max(worst, float(np.abs(output[finite].astype(np.float64) - expected[finite]).max()) / scale)
    return worst
