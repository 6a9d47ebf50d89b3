"""Whether DNNs keep up with their cameras on one device: its utilization, and a bound of the latency of a frame.

A DNN runs one inference at a time. Its time is that while other DNNs run beside it, as was measured or predicted. A job
waits at most for one job of every other DNN, because each has only one in the queue, and for each job of the inference
that is the next one: this bounds the waiting under `fifo`, and of the most important DNN under `priority`. Decoding of
images is not included.

Imports no PyTorch: the node's process evaluates what an engine process has measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Maximum utilization. The rest is a margin for uneven arrivals and other processes.
LIMIT = 0.95
#: A smaller free share of the device counts as none.
_NEGLIGIBLE = 0.01


@dataclass(frozen=True)
class Demand:
    """One DNN. cameras: hertz by camera. inference_ms: from `batch` images to their results while the device is busy.
    jobs_ms: of each job in it. deadline_ms: from image to result; None: no deadline. priority: the advice is to reduce
    the DNN of lowest priority. delay_ms: how long it waits for further images of a batch.
    """

    dnn: str
    cameras: Mapping[str, float]
    inference_ms: float
    jobs_ms: tuple[float, ...]
    batch: int = 1
    deadline_ms: float | None = None
    priority: int = 0
    delay_ms: float = 0.0

    @property
    def hz(self) -> float:
        """Rate of all its cameras together."""
        return sum(self.cameras.values())

    @property
    def load(self) -> float:
        """Share of the time in which it runs inferences."""
        return self.hz * self.inference_ms / self.batch / 1e3


@dataclass(frozen=True)
class Verdict:
    """utilization: required share of the device. needs: by DNN, required share of the time in which it runs inferences.
    breaks: DNNs because of which the set does not fit. most_hz: by DNN in `breaks`, the rate at which the set would
    fit, if there is one. advice: possible remedies.
    """

    fits: bool
    utilization: float
    needs: Mapping[str, float]
    breaks: tuple[str, ...]
    text: str
    most_hz: Mapping[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """What was measured or predicted. servers: DNNs that can run at the same time. gpu: for the text and the advice.
    unpredicted: why times were measured although a predictor was given.
    """

    demands: tuple[Demand, ...]
    servers: int = 1
    gpu: bool = False
    unpredicted: tuple[str, ...] = ()

    def latency_ms(self, demand: Demand) -> float:
        """The longest time from an image to its result, if every camera of the DNN delivers one at the same time."""
        inferences = math.ceil(len(demand.cameras) / demand.batch)
        jobs = len(demand.jobs_ms)
        others_ms = sum(
            min(jobs * max(other.jobs_ms), math.ceil(jobs / len(other.jobs_ms)) * sum(other.jobs_ms))
            for other in self.demands
            if other.dnn != demand.dnn
        )
        return demand.delay_ms + inferences * (demand.inference_ms + others_ms / self._running)

    def verdict(self) -> Verdict:
        """Each DNN needs at most LIMIT of its own time, all together at most LIMIT of the device, and no frame is late.

        If only all together need too much, the DNN of lowest priority is to be reduced, among equal ones that of
        largest load.
        """
        needs = {demand.dnn: demand.load for demand in self.demands}
        utilization = sum(needs.values()) / self._running
        reduced = {demand.dnn: LIMIT / demand.load * demand.hz for demand in self.demands if demand.load > LIMIT}
        # Tolerate rounding: a set reduced exactly to the advised rates must fit.
        if not reduced and utilization > LIMIT * (1.0 + 1e-9):
            last = min(self.demands, key=lambda demand: (demand.priority, -demand.load))
            free = last.load - (utilization - LIMIT) * self._running
            reduced[last.dnn] = free / last.load * last.hz if free > _NEGLIGIBLE else 0.0
        late = [demand for demand in self.demands if self.latency_ms(demand) > (demand.deadline_ms or math.inf)]
        breaks = tuple(dict.fromkeys([*reduced, *(demand.dnn for demand in late)]))
        return Verdict(
            not breaks, utilization, needs, breaks, self._text(utilization, reduced, late),
            {dnn: hz for dnn, hz in reduced.items() if hz}, tuple(self._advice(reduced, late)),
        )  # fmt: skip

    @property
    def _running(self) -> int:
        """DNNs that run at the same time."""
        return min(self.servers, len(self.demands))

    def _text(self, utilization: float, reduced: Mapping[str, float], late: Sequence[Demand]) -> str:
        count = f"{len(self.demands)} DNNs need" if len(self.demands) > 1 else "1 DNN needs"
        device = "the GPU" if self.gpu else f"{self._running} worker{'s' if self._running > 1 else ''}"
        reasons = [
            f"{demand.dnn}: {demand.inference_ms:.1f} ms per inference at {three_digits(demand.hz)} Hz, "
            f"{demand.load:.0%} of its time"
            for demand in self.demands
            if demand.dnn in reduced
        ]
        reasons += [
            f"{demand.dnn}: up to {self.latency_ms(demand):.1f} ms from image to result, deadline "
            f"{demand.deadline_ms:g} ms"
            for demand in late
        ]
        total = f"{count} {utilization:.0%} of {device}"
        return f"does not fit: {total}; because of {'; '.join(reasons)}" if reasons else f"fits: {total}"

    def _advice(self, reduced: Mapping[str, float], late: Sequence[Demand]) -> list[str]:
        cheaper = "multi-dnn decompose, a smaller input" + (", fp16" if self.gpu else "")
        lines = []
        for demand in self.demands:
            if demand.dnn in reduced:
                hz = reduced[demand.dnn]
                rate = f"at most {three_digits(hz)} Hz instead of {three_digits(demand.hz)}"
                lines.append(f"{demand.dnn}: {rate if hz else 'no rate fits beside the others'}, or {cheaper}")
        return lines + [
            f"{demand.dnn}: a deadline of at least {math.ceil(self.latency_ms(demand))} ms instead of "
            f"{demand.deadline_ms:g}, shorter jobs of the others (blocking_ms), or {cheaper}"
            for demand in late
        ]


def three_digits(value: float) -> str:
    """Format with three significant digits, from 999.5 on as a whole number: 0.0123, 4.56, 789, 12346."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
