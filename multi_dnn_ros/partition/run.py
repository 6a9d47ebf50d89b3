"""Run one batch as planned. Outputs have the order of the inputs, and are complete or not returned at all."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.blocks import Block, BlockForm
from multi_dnn_ros.partition.executor import Array, NetworkRequest, OutputForm
from multi_dnn_ros.partition.unit_process import PREPARE_TIMEOUT_S, UnitFailure, UnitHandle, UnitProcesses
from multi_dnn_ros.planning.batch_plan import SEARCHES, Plan, PlanError, UnitTimes, capacity
from multi_dnn_ros.planning.batch_units import Unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """The images that one unit computed in one round. Times in milliseconds from the start of the round."""

    unit: str
    first: int
    count: int
    begin_ms: float
    end_ms: float


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


def run_batch(
    units: Sequence[Unit],
    tables: Mapping[str, UnitTimes],
    plan: Plan,
    network: NetworkRequest,
    precision: str,
    images: Array,
    *,
    rounds: int = 1,
    timeout_s: float = 600.0,
) -> BatchRun:
    """Run `plan` on `images` (batch, 3, height, width) float32: once to warm up, then `rounds` times.

    A unit that fails is not used again: its images are divided among the others by their tables, in several steps if
    necessary, and no further round is measured. timeout_s: time limit per round; a unit that exceeds it has failed.
    Raises CommandError when no unit is left, and UnitFailure when a unit cannot load the network.
    """
    used = [unit for unit in units if unit.name in plan.images]
    with UnitProcesses(used) as processes:
        processes.open(network, precision)
        for name, handle in processes.handles.items():
            _check_shape(name, handle, images)
        return _Round(processes, tables, images, timeout_s).run(plan, rounds)


class _Round:
    """The state of one batch: its blocks, and the units that have not failed."""

    def __init__(
        self, processes: UnitProcesses, tables: Mapping[str, UnitTimes], images: Array, timeout_s: float
    ) -> None:
        self._processes = processes
        self._tables = tables
        self._timeout_s = timeout_s
        self._inputs = Block(BlockForm(images.shape, "float32"))
        self._inputs.array[:] = images
        self._forms: tuple[OutputForm, ...] = ()
        self._outputs: list[Block] = []
        self._attached: set[str] = set()
        self._left = list(processes.handles)
        self._failures: list[str] = []

    def run(self, plan: Plan, rounds: int) -> BatchRun:
        shares = _ranges(plan.images, 0)
        failed: dict[str, tuple[int, int]] = {}
        done: list[tuple[Share, ...]] = []
        try:
            ready = self._prepare(shares, failed)
            for number in range(rounds + 1):
                timed = self._once(ready, failed)
                if failed:
                    break
                if number:  # the first one warms up
                    done.append(timed)
            began = time.monotonic()
            repeated = sum(count for _, count in failed.values())
            self._recover(list(failed.values()))
            recovery_ms = 1e3 * (time.monotonic() - began) if repeated else 0.0
            outputs = tuple(np.array(block.array) for block in self._outputs)
        finally:
            for block in (self._inputs, *self._outputs):
                block.close()
        tolerance = max(handle.opened.tolerance for handle in self._processes.handles.values() if handle.opened)
        return BatchRun(outputs, tuple(done), tuple(self._failures), repeated, recovery_ms, tolerance)

    def _prepare(
        self, shares: Mapping[str, tuple[int, int]], failed: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Prepare the units one after another. Returns the ranges of those that succeed; adds the rest to `failed`."""
        ready = {}
        for name, (first, count) in shares.items():
            handle = self._processes.handles[name]
            try:
                forms = handle.ask(messages.Prepare(count), messages.Prepared, PREPARE_TIMEOUT_S).outputs
                self._allocate(name, forms)
                if name not in self._attached:
                    blocks = [self._inputs, *self._outputs]
                    attach = messages.Attach(self._inputs.form, tuple(block.form for block in self._outputs))
                    handle.ask(attach, messages.Attached, PREPARE_TIMEOUT_S, blocks)
                    self._attached.add(name)
                ready[name] = (first, count)
            except UnitFailure as failure:
                self._lose(failure)
                failed[name] = (first, count)
        return ready

    def _allocate(self, name: str, forms: tuple[OutputForm, ...]) -> None:
        if not self._outputs:
            self._forms = forms
            batch = self._inputs.form.shape[0]
            self._outputs = [Block(BlockForm((batch, *form.shape), form.dtype)) for form in forms]
        elif forms != self._forms:
            raise CommandError(f"unit {name} has outputs {forms}; expected those of the other units, {self._forms}")

    def _once(self, shares: Mapping[str, tuple[int, int]], failed: dict[str, tuple[int, int]]) -> tuple[Share, ...]:
        answers, failures, begin = self._processes.run(shares, self._timeout_s)
        for name, failure in failures.items():
            self._lose(failure)
            failed[name] = shares[name]
        return tuple(
            Share(name, *shares[name], (of.begin_ns - begin) / 1e6, (of.end_ns - begin) / 1e6)
            for name, of in answers.items()
        )

    def _lose(self, failure: UnitFailure) -> None:
        self._left.remove(failure.unit)
        self._failures.append(str(failure))
        log.warning("%s; its images go to: %s", failure, ", ".join(self._left) or "no unit is left")

    def _recover(self, ranges: list[tuple[int, int]]) -> None:
        """Compute these ranges of images on the remaining units, in steps of as many images as they hold."""
        while ranges:
            first, count = ranges.pop(0)
            tables = {name: self._tables[name] for name in self._left}
            most = min(count, capacity(tables))
            if not most:
                reasons = "; ".join(self._failures)
                raise CommandError(f"no unit is left for {count} images; no outputs were written: {reasons}")
            if most < count:
                ranges.insert(0, (first + most, count - most))
            try:
                plan = SEARCHES["exact"](tables, most)
            except PlanError as error:
                raise CommandError(f"the images of a failed unit cannot be divided: {error}") from None
            failed: dict[str, tuple[int, int]] = {}
            ready = self._prepare(_ranges(plan.images, first), failed)
            self._once(ready, failed)
            ranges.extend(failed.values())


def _ranges(images: Mapping[str, int], first: int) -> dict[str, tuple[int, int]]:
    """Consecutive ranges (first, count) of the units that have images."""
    ranges = {}
    for name, count in images.items():
        if count:
            ranges[name] = (first, count)
            first += count
    return ranges


def _check_shape(name: str, handle: UnitHandle, images: Array) -> None:
    if handle.opened is not None and tuple(images.shape[1:]) != handle.opened.shape:
        raise CommandError(
            f"images have the shape {tuple(images.shape[1:])}; the network on {name} expects {handle.opened.shape}"
        )


def _end(shares: Sequence[Share]) -> float:
    return max(share.end_ms for share in shares)


def disagreement(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Largest difference between two lists of outputs, relative to the largest value of each output in `reference`.

    Infinite if shapes differ, or if a value is finite in one list only.
    """
    worst = 0.0
    if len(outputs) != len(reference):
        return float("inf")
    for own, theirs in zip(outputs, reference, strict=True):
        if own.shape != theirs.shape or not np.array_equal(np.isfinite(own), np.isfinite(theirs)):
            return float("inf")
        finite = np.isfinite(theirs)
        if finite.any():
            scale = float(np.abs(theirs[finite]).max()) or 1.0
            worst = max(worst, float(np.abs(own[finite].astype(np.float64) - theirs[finite]).max()) / scale)
    return worst
