"""Runs a batch on several units as planned. Outputs are in the order of the inputs, and complete or not returned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition.plan import Plan
from multi_dnn_ros.partition.pool import UnitPool
from multi_dnn_ros.partition.worker import Network, OutputForm, Times


@dataclass(frozen=True)
class Share:
    """What one unit did in one round. begin_ms, end_ms: from the start of the batch. times: of the parts in between."""

    unit: str
    images: int
    begin_ms: float
    end_ms: float
    times: Times


@dataclass(frozen=True)
class BatchRun:
    """A plan that was run. rounds: the shares of each timed round."""

    plan: Plan
    rounds: tuple[tuple[Share, ...], ...]

    @property
    def total_ms(self) -> float:
        """Time from the start of the batch until the last unit ends; median over the rounds."""
        return median(_end_ms(shares) for shares in self.rounds)

    @property
    def typical(self) -> tuple[Share, ...]:
        """The shares of the round of median length."""
        return sorted(self.rounds, key=_end_ms)[(len(self.rounds) - 1) // 2]


class BatchRunner:
    """Runs one batch of images by different plans.

    If a unit fails, UnitFailure ends the run: others were not measured for its share, and the times would be of no
    plan. Repeating the command without the unit takes seconds.
    """

    def __init__(self, pool: UnitPool, images: Tensor) -> None:
        """images: (batch, 3, height, width) float32; they are moved to shared memory."""
        self._pool = pool
        self._images = _shared(images)
        #: Those of the last run, (batch, ...) each, in shared memory.
        self.outputs: tuple[Tensor, ...] = ()
        self._forms: tuple[OutputForm, ...] = ()
        self._prepared: dict[str, int] = {}

    def run(self, plan: Plan, rounds: int, progress: Callable[[int, int], None] = lambda done, total: None) -> BatchRun:
        """Run a plan for the whole batch: once to warm up, then `rounds` times. Raises UnitFailure."""
        self._prepare(plan)
        for output in self.outputs:
            output.zero_()
        found = []
        for number in range(rounds + 1):
            progress(number, rounds + 1)
            began = time.monotonic_ns()
            answers = self._pool.ask(Network.run, plan.ranges)
            found.append(tuple(
                Share(unit, plan.images[unit], (begin - began) / 1e6, (end - began) / 1e6, times)
                for unit, (begin, end, times) in answers.items()
            ))  # fmt: skip
        progress(rounds + 1, rounds + 1)
        return BatchRun(plan, tuple(found[1:]))

    def _prepare(self, plan: Plan) -> None:
        """Prepare all units of the plan for their numbers of images, at the same time."""
        changed = {unit: (count,) for unit, (_, count) in plan.ranges.items() if self._prepared.get(unit) != count}
        for unit, forms in self._pool.ask(Network.prepare, changed).items():
            (self._prepared[unit],) = changed[unit]
            if not self._forms:
                self._forms = forms
                batch = len(self._images)
                self.outputs = tuple(_shared(torch.empty(batch, *form.shape, dtype=form.dtype)) for form in forms)
                memory = (self._images, self.outputs)
                self._pool.ask(Network.attach, dict.fromkeys(self._pool.tables, memory))
            elif forms != self._forms:
                raise CommandError(f"unit {unit} has outputs {forms}; expected those of the others, {self._forms}")


def _shared(tensor: Tensor) -> Tensor:
    """The tensor, moved to shared memory. Raises CommandError if there is not enough."""
    try:
        tensor.share_memory_()
        return tensor
    except RuntimeError as error:
        raise CommandError(
            f"{tensor.nbytes / 2**20:.0f} MiB of shared memory cannot be allocated (see `df -h /dev/shm`): {error}"
        ) from None


def _end_ms(shares: Sequence[Share]) -> float:
    return max(share.end_ms for share in shares)


def check_outputs(units: str, outputs: Sequence[Tensor], reference: Sequence[Tensor], allowed: float) -> None:
    """Raise CommandError if the outputs of `units` differ by more than `allowed`, relative to the largest value."""
    for index, (output, expected) in enumerate(zip(outputs, reference, strict=True)):
        if not output.numel() or torch.equal(output, expected):
            continue
        scale = expected.double().abs().max().clamp(min=1e-30)
        difference = float((output.double() - expected.double()).abs().max() / scale)
        if not difference <= allowed:  # or NaN
            raise CommandError(
                f"output {index} of {units} differs from that of all units by {difference:.2g} of the largest value; "
                f"allowed: {allowed:.2g}; nothing was written"
            )
