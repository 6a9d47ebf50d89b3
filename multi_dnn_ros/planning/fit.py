"""Whether DNNs keep up with their cameras on one device: its utilization, and a bound of the latency of a frame.

A DNN runs one inference at a time. While several run, each takes longer than alone, by a factor that was measured or
predicted. A job waits at most for one job of every other DNN, because each has only one in the queue, and for each job
of the inference that is the next one: this bounds the waiting under `fifo`, and of the most important DNN under
`priority`. Decoding of images is not included.

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

#: Hertz by DNN and camera.
Rates = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Demand:
    """One DNN. cameras: hertz by camera. inference_ms: from `batch` images to their results while nothing else runs.
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
        """Share of the time of a device that runs nothing else."""
        return self.hz * self.inference_ms / self.batch / 1e3


@dataclass(frozen=True)
class Verdict:
    """utilization: required share of the device. needs: by DNN, required share of the time in which it runs inferences
    while the others run. breaks: DNNs because of which the set does not fit. most_hz: by DNN in `breaks`, the rate at
    which the set would fit, if there is one. advice: possible remedies. unpredicted: why times were not predicted.
    """

    fits: bool
    utilization: float
    needs: Mapping[str, float]
    breaks: tuple[str, ...]
    text: str
    most_hz: Mapping[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    unpredicted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """What was measured or predicted. servers: inferences that run at the same time. speedup: milliseconds of work, as
    measured alone, that the device completes in a millisecond while so many run. gpu: for the text and the advice.
    """

    demands: tuple[Demand, ...]
    servers: int = 1
    speedup: float = 1.0
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
        return demand.delay_ms + inferences * (demand.inference_ms * self._stretch + others_ms / self.speedup)

    def verdict(self) -> Verdict:
        """Each DNN needs at most LIMIT of its own time, all together at most LIMIT of the device, and no frame is late.

        Raises ValueError for a number that is out of range.
        """
        self._check()
        needs = {demand.dnn: demand.load * self._stretch for demand in self.demands}
        utilization = sum(demand.load for demand in self.demands) / self.speedup
        reduced = {
            demand.dnn: LIMIT / needs[demand.dnn] * demand.hz for demand in self.demands if needs[demand.dnn] > LIMIT
        }
        # Tolerate rounding: a set reduced exactly to the advised rates must fit.
        if not reduced and utilization > LIMIT * (1.0 + 1e-9):
            heaviest = self._heaviest((utilization - LIMIT) * self.speedup)
            free = heaviest.load / self.speedup - (utilization - LIMIT)
            reduced[heaviest.dnn] = free * self.speedup / heaviest.load * heaviest.hz if free > _NEGLIGIBLE else 0.0
        late = [demand for demand in self.demands if self._is_late(demand)]
        breaks = tuple(dict.fromkeys([*reduced, *(demand.dnn for demand in late)]))
        return Verdict(
            not breaks, utilization, needs, breaks, self._text(utilization, needs, reduced, late),
            {dnn: hz for dnn, hz in reduced.items() if hz}, tuple(self._advice(reduced, late)), self.unpredicted,
        )  # fmt: skip

    @property
    def _stretch(self) -> float:
        """Factor by which an inference takes longer while the others run."""
        return max(1.0, min(self.servers, len(self.demands)) / self.speedup)

    def _is_late(self, demand: Demand) -> bool:
        return demand.deadline_ms is not None and self.latency_ms(demand) > demand.deadline_ms

    def _heaviest(self, excess: float) -> Demand:
        """The DNN of lowest priority among those whose removal would suffice; without one, that of largest load."""
        sufficient = [demand for demand in self.demands if demand.load >= excess - 1e-9]
        if not sufficient:
            return max(self.demands, key=lambda demand: demand.load)
        return min(sufficient, key=lambda demand: (demand.priority, -demand.load))

    def _text(
        self, utilization: float, needs: Mapping[str, float], reduced: Mapping[str, float], late: Sequence[Demand]
    ) -> str:
        count = f"{len(self.demands)} DNNs need" if len(self.demands) > 1 else "1 DNN needs"
        device = "the GPU" if self.gpu else f"{self.servers} worker{'s' if self.servers > 1 else ''}"
        total = f"{count} {utilization:.0%} of {device}"
        reasons = [
            f"{demand.dnn}: {demand.inference_ms:.1f} ms per inference at {three_digits(demand.hz)} Hz, "
            f"{needs[demand.dnn]:.0%} of its time"
            for demand in self.demands
            if demand.dnn in reduced
        ]
        reasons += [
            f"{demand.dnn}: up to {self.latency_ms(demand):.1f} ms from image to result, deadline "
            f"{demand.deadline_ms:g} ms"
            for demand in late
        ]
        return f"does not fit: {total}; because of {'; '.join(reasons)}" if reasons else f"fits: {total}"

    def _advice(self, reduced: Mapping[str, float], late: Sequence[Demand]) -> list[str]:
        cheaper = "multi-dnn decompose, a smaller input" + (", fp16" if self.gpu else "")
        lines = []
        for demand in self.demands:
            if demand.dnn in reduced:
                hz = reduced[demand.dnn]
                rate = f"at most {three_digits(hz)} Hz instead of {three_digits(demand.hz)}" if hz else "no rate fits"
                lines.append(f"{demand.dnn}: {rate}{' beside the others' if not hz else ''}, or {cheaper}")
        return lines + [
            f"{demand.dnn}: a deadline of at least {math.ceil(self.latency_ms(demand))} ms instead of "
            f"{demand.deadline_ms:g}, shorter jobs of the others (blocking_ms), or {cheaper}"
            for demand in late
        ]

    def _check(self) -> None:
        if not self.demands or self.servers < 1 or not self.speedup > 0.0:
            raise ValueError(
                f"{len(self.demands)} DNNs, {self.servers} servers, speed-up {self.speedup}: must be above 0"
            )
        for demand in self.demands:
            for value in (demand.inference_ms, *demand.jobs_ms, *demand.cameras.values()):
                if not 0.0 <= value < 1e9:
                    raise ValueError(f"DNN {demand.dnn} has the time or rate {value}; allowed: 0 to 1e9")


def three_digits(value: float) -> str:
    """Format with three significant digits, from 999.5 on as a whole number: 0.0123, 4.56, 789, 12346."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
