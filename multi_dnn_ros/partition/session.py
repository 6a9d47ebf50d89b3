"""Compute batch after batch of one network on several units. Outputs have the order of the inputs, and are complete."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.blocks import Block, BlockForm
from multi_dnn_ros.partition.executor import Array, NetworkRequest, OutputForm, RunTimes
from multi_dnn_ros.partition.unit_process import PREPARE_TIMEOUT_S, UnitFailure, UnitProcesses
from multi_dnn_ros.planning.batch_plan import SEARCHES, Plan, PlanError, UnitTimes, capacity
from multi_dnn_ros.planning.batch_units import Unit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """The images that one unit computed. begin_ms, end_ms: from the start of the batch. times: the parts in between."""

    unit: str
    first: int
    count: int
    begin_ms: float
    end_ms: float
    times: RunTimes


@dataclass(frozen=True)
class Computed:
    """How a batch was computed.

    shares: ranges that the planned units computed. repeated_images: number of images that were computed by a unit other
    than the planned one, because the planned one failed: all images if it had failed before. recovery_ms: time that
    this took.
    """

    shares: tuple[Share, ...]
    repeated_images: int
    recovery_ms: float


class BatchSession:
    """Units with a network loaded on each; a context manager that ends their processes.

    A unit that fails is not used again: its images are divided among the other units of the plan by their tables, in
    several steps if necessary. failures: a message for each failed unit. plan: how batches are divided.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        tables: Mapping[str, UnitTimes],
        plan: Plan,
        network: NetworkRequest,
        precision: str,
        *,
        timeout_s: float = 600.0,
    ) -> None:
        """plan: for full batches, used until :meth:`change_plan`. timeout_s: time limit per batch; a unit that exceeds
        it has failed.

        Raises UnitFailure when a unit cannot load the network.
        """
        self.failures: dict[str, str] = {}
        self.plan = plan
        self._max_batch = plan.batch
        self._tables = tables
        self._timeout_s = timeout_s
        self._blocks: list[Block] = []
        self._forms: tuple[OutputForm, ...] = ()
        self._attached: set[str] = set()
        self._prepared: dict[str, int] = {}
        self._processes = UnitProcesses([unit for unit in units if unit.name in plan.images])
        try:
            self._processes.open(network, precision)
            opened = [handle.opened for handle in self._processes.handles.values() if handle.opened is not None]
            #: Shape of one image, (3, height, width).
            self.shape = opened[0].shape
            #: The largest tolerance of the units, see Executor.
            self.tolerance = max(each.tolerance for each in opened)
            dtypes = {each.image_dtype for each in opened}
            dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
            self._blocks.append(Block(BlockForm((plan.batch, *self.shape), dtype)))
        except BaseException:
            self.close()
            raise

    def change_plan(self, plan: Plan) -> None:
        """Divide the next batches by another plan, over units of the first plan and of at most as many images."""
        assert plan.batch <= self._max_batch
        assert set(plan.images) <= set(self._processes.handles)
        self.plan = plan

    def load(self, images: Array) -> None:
        """Set the images of the next batch: (N, 3, height, width) float32, N up to the plan's batch.

        Raises CommandError for images of another shape.
        """
        if tuple(images.shape[1:]) != self.shape or len(images) > self.plan.batch:
            raise CommandError(
                f"images have the shape {tuple(images.shape)}; the network expects up to {self.plan.batch} images of "
                f"the shape {self.shape}"
            )
        with np.errstate(over="ignore"):  # infinite in float16, as on the device
            self._blocks[0].array[: len(images)] = images

    def compute(self) -> Computed:
        """Run the network on the images that were loaded.

        A partial batch is computed as a full one, filled up with images of the previous batch, because preparing a unit
        for another size can take much longer. Raises CommandError when no unit is left.
        """
        shares = _ranges(self.plan.images, 0)
        if any(name in self.failures for name in shares):
            began = time.monotonic()
            self._recover([(0, self.plan.batch)])
            return Computed((), self.plan.batch, 1e3 * (time.monotonic() - began))
        failed: dict[str, tuple[int, int]] = {}
        ready = self._prepare(shares, failed)
        done = self._run_ranges(ready, failed)
        began = time.monotonic()
        repeated = sum(count for _, count in failed.values())
        self._recover(list(failed.values()))
        return Computed(done, repeated, 1e3 * (time.monotonic() - began) if repeated else 0.0)

    def outputs(self, images: int) -> tuple[Array, ...]:
        """Copies of the outputs of the first `images` images: (images, ...) each."""
        return tuple(np.array(block.array[:images]) for block in self._blocks[1:])

    def run(self, images: Array) -> tuple[Array, ...]:
        """The outputs of these images. Raises what `load` and `compute` raise."""
        self.load(images)
        self.compute()
        return self.outputs(len(images))

    def close(self) -> None:
        """End the processes and free the memory."""
        self._processes.close()
        for block in self._blocks:
            block.close()

    def __enter__(self) -> BatchSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(
        self, shares: Mapping[str, tuple[int, int]], failed: dict[str, tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Prepare the units at the same time. Returns the ranges of those that succeed; adds the rest to `failed`."""
        ready = {}
        preparing: set[str] = set()
        for name, (_, count) in shares.items():
            if self._prepared.pop(name, None) != count:
                with suppress(UnitFailure):  # receiving the answer raises it again
                    self._processes.handles[name].send(messages.Prepare(count))
                preparing.add(name)
        for name, (first, count) in shares.items():
            try:
                if name in preparing:
                    self._end_preparing(name)
                self._prepared[name] = count
                ready[name] = (first, count)
            except UnitFailure as failure:
                self._lose(failure)
                failed[name] = (first, count)
        return ready

    def _end_preparing(self, name: str) -> None:
        handle = self._processes.handles[name]
        forms = handle.receive(messages.Prepared, PREPARE_TIMEOUT_S).outputs
        if len(self._blocks) == 1:
            self._forms = forms
            self._blocks += [Block(BlockForm((self._max_batch, *form.shape), form.dtype)) for form in forms]
        elif forms != self._forms:
            raise CommandError(f"unit {name} has outputs {forms}; expected those of the other units, {self._forms}")
        if name not in self._attached:
            inputs, *outputs = self._blocks
            attach = messages.Attach(inputs.form, tuple(block.form for block in outputs))
            handle.ask(attach, messages.Attached, PREPARE_TIMEOUT_S, self._blocks)
            self._attached.add(name)

    def _run_ranges(
        self, shares: Mapping[str, tuple[int, int]], failed: dict[str, tuple[int, int]]
    ) -> tuple[Share, ...]:
        answers, failures, begin = self._processes.run(shares, self._timeout_s)
        for name, failure in failures.items():
            self._lose(failure)
            failed[name] = shares[name]
        return tuple(
            Share(name, *shares[name], (ran.begin_ns - begin) / 1e6, (ran.end_ns - begin) / 1e6, ran.times)
            for name, ran in answers.items()
        )

    def _lose(self, failure: UnitFailure) -> None:
        self.failures[failure.unit] = str(failure)
        if left := self._left():
            log.warning("%s; its images are divided among %s", failure, ", ".join(left))
        else:
            log.warning("%s; no unit is left", failure)

    def _left(self) -> list[str]:
        """The units of the plan that have not failed."""
        return [name for name in self.plan.images if name not in self.failures]

    def _recover(self, ranges: list[tuple[int, int]]) -> None:
        """Compute these ranges of images on the remaining units, in steps of as many images as fit on them."""
        while ranges:
            first, count = ranges.pop(0)
            tables = {name: self._tables[name] for name in self._left()}
            fitting = min(count, capacity(tables))
            if not fitting:
                reasons = "; ".join(self.failures.values())
                raise CommandError(f"no unit is left for {count} images; no outputs were written: {reasons}")
            if fitting < count:
                ranges.insert(0, (first + fitting, count - fitting))
            try:
                plan = SEARCHES["exact"](tables, fitting)
            except PlanError as error:
                raise CommandError(f"the images of a failed unit cannot be divided: {error}") from None
            failed: dict[str, tuple[int, int]] = {}
            ready = self._prepare(_ranges(plan.images, first), failed)
            self._run_ranges(ready, failed)
            ranges.extend(failed.values())


def _ranges(images: Mapping[str, int], first: int) -> dict[str, tuple[int, int]]:
    """Consecutive ranges (first, count) of the units that have images."""
    ranges = {}
    for name, count in images.items():
        if count:
            ranges[name] = (first, count)
            first += count
    return ranges
