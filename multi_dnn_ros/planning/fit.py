"""Checks, without measuring, whether a set of DNNs, cameras and rates fits a device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.common.reporting import three_digits

#: Maximum utilization. The rest is a margin for what mean times do not show: uneven arrivals, other processes, and
#: results that take longer to decode.
LIMIT = 0.95
_ITERATIONS = 25
#: A smaller free share of a worker counts as none.
_NEGLIGIBLE = 0.01
#: Image decoding that takes a smaller share of the workers is not mentioned.
_MIN_MENTIONED = 0.005
#: Name of the unit that computes one frame at a time, without and with a GPU.
_UNIT = {False: "worker", True: "stream"}


@dataclass(frozen=True)
class Demand:
    """Demand of one DNN. Times are per frame.

    cameras: rate in hertz, by camera.
    alone_ms: time from mailbox to result while nothing else runs.
    crowded_ms: the same while all other workers are busy, without waiting for a worker.
    deadline_ms: time allowed from arrival to result; None: no deadline.
    priority: if the set does not fit, the advice is to reduce the DNN of lowest priority.
    shared_ms: time on resources that all DNNs share even when each has a worker: a GPU's execution units and the GIL.
    wait_ms: further latency from a frame's arrival to its result while the DNN is idle: image decoding and waiting for
    the rest of a batch.
    batch: frames per inference, whose results arrive together.
    """

    dnn: str
    cameras: Mapping[str, float]
    alone_ms: float
    crowded_ms: float
    deadline_ms: float | None = None
    priority: int = 0
    shared_ms: float = 0.0
    wait_ms: float = 0.0
    batch: float = 1.0

    @property
    def hz(self) -> float:
        """Total rate of its cameras."""
        return sum(self.cameras.values())

    def latency_ms(self, ms: float) -> float:
        """Latency from arrival to result if the DNN takes `ms` per frame."""
        return ms * self.batch + self.wait_ms


@dataclass(frozen=True)
class Decoding:
    """Decoding of one camera's images, once for all DNNs, by the camera's thread. ms: per image, on one core."""

    camera: str
    hz: float
    ms: float

    @property
    def need(self) -> float:
        """Share of one core's time."""
        return self.hz * self.ms / 1e3


@dataclass(frozen=True)
class Verdict:
    """Result of the check. utilization: required share of all workers' time. needs: by DNN, the required share of one
    worker's time.

    breaks: DNNs because of which the set does not fit; none if image decoding alone is the cause. decoding: by camera,
    the share of a core's time. overloaded: cameras whose images one thread cannot decode in time. most_hz: by DNN in
    `breaks`, the rate at which the set would fit, if there is one. advice: possible remedies, one sentence each.
    unpredicted: reasons why times were not predicted.
    """

    fits: bool
    utilization: float
    needs: dict[str, float]
    breaks: tuple[str, ...]
    text: str
    most_hz: dict[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    unpredicted: tuple[str, ...] = field(default=())
    decoding: dict[str, float] = field(default_factory=dict)
    overloaded: tuple[str, ...] = ()


def check_fit(
    demands: Sequence[Demand],
    workers: int,
    *,
    gpu: bool = False,
    limit: float = LIMIT,
    unpredicted: Sequence[str] = (),
    decoding: Sequence[Decoding] = (),
    cores: int = 0,
) -> Verdict:
    """Check `demands` on a device with `workers` workers.

    Conditions: each DNN, which processes one frame at a time, needs at most `limit` of one worker; all DNNs together
    need at most `limit` of all workers and of the shared resources; no frame exceeds its deadline. A frame takes
    between alone_ms and crowded_ms, depending on the utilization of the other workers.

    gpu: advise fp16, and call workers streams, because each DNN has its own. decoding: image decoding, for which each
    camera needs at most `limit` of a core, since one thread decodes its images. On a CPU all decoding takes its share
    of the `cores` from the workers. Raises ValueError for no workers, or for a demand out of range.
    """
    _check(demands, workers, limit)
    unit = _UNIT[gpu]
    times = _times_ms(demands, workers)
    needs = {demand.dnn: demand.hz * ms / 1e3 for demand, ms in zip(demands, times, strict=True)}
    taken = 0.0 if gpu or not cores else sum(image.need for image in decoding) / cores  # share of all workers' time
    utilization = sum(needs.values()) / workers + taken
    overloaded = [image for image in decoding if image.need > limit]
    oversized = [demand for demand in demands if needs[demand.dnn] > limit]
    late = [
        demand
        for demand, ms in zip(demands, times, strict=True)
        if demand.deadline_ms is not None and demand.latency_ms(ms) > demand.deadline_ms
    ]
    shares = {demand.dnn: demand.hz * demand.shared_ms / 1e3 for demand in demands}
    shared = sum(shares.values())
    heaviest: list[Demand] = []
    # Tolerate rounding: a set reduced exactly to the advised rates must fit.
    overload = utilization > limit * (1.0 + 1e-9)
    decoding_fills = overload and taken > 0.0 and (limit - taken) * workers <= _NEGLIGIBLE  # nothing is left for DNNs
    if overload and not oversized and not decoding_fills:
        heaviest = [_largest_need(demands, needs, (utilization - limit) * workers)]
    heaviest_shared: list[Demand] = []
    if not oversized and not heaviest and shared > limit * (1.0 + 1e-9):
        heaviest_shared = [_largest_need(demands, shares, shared - limit)]
    breaks = tuple(dict.fromkeys(demand.dnn for demand in (*oversized, *heaviest, *heaviest_shared, *late)))
    ms_of = {demand.dnn: ms for demand, ms in zip(demands, times, strict=True)}
    mentioned = taken if taken >= _MIN_MENTIONED else 0.0
    text = _text(
        demands, needs, ms_of, utilization, workers, breaks, {demand.dnn for demand in late}, unit, overloaded,
        mentioned, decoding_fills,
    )  # fmt: skip
    if heaviest_shared:
        text += f"; together they need {shared:.0%} of the shared resources"
    most_hz: dict[str, float] = {}
    advice = []
    reduced = (*oversized, *heaviest)
    others = sum(needs.values()) - sum(needs[demand.dnn] for demand in reduced)
    left = (limit - taken) * workers - others
    advise_less_decoding = decoding_fills
    for number, demand in enumerate(reduced):
        free = min(limit, left / (len(reduced) - number))  # the reduced DNNs share the remaining time
        left -= max(0.0, free)
        if free > _NEGLIGIBLE:
            most_hz[demand.dnn] = free / ms_of[demand.dnn] * 1e3
        elif free + taken * workers > _NEGLIGIBLE:
            advise_less_decoding = True
        taken_by_others = _others_text(
            len(demands) > len(reduced), mentioned, f"{others / workers + taken:.0%} of the {unit}s"
        )
        advice.append(_advice(demand, most_hz.get(demand.dnn), free, ms_of[demand.dnn], taken_by_others, gpu))
    for demand in heaviest_shared:
        free = limit - (shared - shares[demand.dnn])
        if free > _NEGLIGIBLE:
            most_hz[demand.dnn] = free / demand.shared_ms * 1e3
        ms = ms_of[demand.dnn]
        taken_by_others = _others_text(True, 0.0, f"{shared - shares[demand.dnn]:.0%} of the shared resources")
        advice.append(_advice(demand, most_hz.get(demand.dnn), free * ms / demand.shared_ms, ms, taken_by_others, gpu))
    advice += [
        f"{demand.dnn}: a deadline of at least {math.ceil(demand.latency_ms(ms_of[demand.dnn]))} ms instead of "
        f"{demand.deadline_ms:g}, or {_cheaper(gpu)}"
        for demand in late
    ]
    advice += [
        f"camera {image.camera}: at most {three_digits(limit / image.ms * 1e3)} Hz instead of "
        f"{three_digits(image.hz)}, or smaller images"
        for image in overloaded
    ]
    if advise_less_decoding:
        advice.append("image decoding: lower rates of the cameras, or smaller images")
    return Verdict(
        not breaks and not overloaded and not decoding_fills, utilization, needs, breaks, text, most_hz, tuple(advice),
        tuple(unpredicted), {image.camera: image.need for image in decoding},
        tuple(image.camera for image in overloaded),
    )  # fmt: skip


def service_ms(demands: Sequence[Demand], workers: int) -> dict[str, float]:
    """Milliseconds per frame of each DNN while the others run, as check_fit uses them."""
    return {demand.dnn: ms for demand, ms in zip(demands, _times_ms(demands, workers), strict=True)}


def _times_ms(demands: Sequence[Demand], workers: int) -> list[float]:
    """Fixed-point iteration: each time depends on how busy the others are, which depends on their times."""
    times = [demand.alone_ms for demand in demands]
    for _ in range(_ITERATIONS):
        busy = [min(1.0, demand.hz * ms / 1e3) for demand, ms in zip(demands, times, strict=True)]
        others = [min(1.0, (sum(busy) - share) / (workers - 1)) if workers > 1 else 0.0 for share in busy]
        times = [
            demand.alone_ms + (max(demand.crowded_ms, demand.alone_ms) - demand.alone_ms) * others_busy
            for demand, others_busy in zip(demands, others, strict=True)
        ]
    return times


def _largest_need(demands: Sequence[Demand], needs: Mapping[str, float], excess: float) -> Demand:
    """The DNN to reduce: among those whose removal would make the set fit, the one of lowest priority and then of
    highest need; without such a DNN, the one of highest need.
    """
    sufficient = [demand for demand in demands if needs[demand.dnn] >= excess - 1e-9]
    if not sufficient:
        return max(demands, key=lambda demand: needs[demand.dnn])
    return min(sufficient, key=lambda demand: (demand.priority, -needs[demand.dnn]))


def _text(
    demands: Sequence[Demand],
    needs: Mapping[str, float],
    ms_of: Mapping[str, float],
    utilization: float,
    workers: int,
    breaks: Sequence[str],
    late: set[str],
    unit: str,
    overloaded: Sequence[Decoding],
    taken: float,
    decoding_fills: bool,
) -> str:
    """taken: share of the workers for image decoding. decoding_fills: whether decoding leaves nothing for DNNs."""
    count = f"{len(demands)} DNNs need" if len(demands) > 1 else "1 DNN needs"
    total = f"{count} {utilization:.0%} of {workers} {unit}{'s' if workers > 1 else ''}"
    if taken:
        total += f", including {taken:.0%} for image decoding"
    if not breaks and not overloaded and not decoding_fills:
        return f"fits: {total}"
    by_name = {demand.dnn: demand for demand in demands}
    parts = []
    for name in breaks:
        demand = by_name[name]
        part = f"{name}: {ms_of[name]:.1f} ms per frame at {three_digits(demand.hz)} Hz, {needs[name]:.0%} of a {unit}"
        if name in late and demand.deadline_ms is not None:
            if demand.wait_ms or demand.batch > 1.0:
                part += f", {demand.latency_ms(ms_of[name]):.1f} ms from arrival to result"
            part += f", deadline {demand.deadline_ms:g} ms"
        parts.append(part)
    parts += [
        f"camera {image.camera}: {image.ms:.1f} ms to decode an image at {three_digits(image.hz)} Hz, "
        f"{image.need:.0%} of a core"
        for image in overloaded
    ]
    if decoding_fills:
        parts.append(f"image decoding: {taken:.0%} of the {unit}s")
    return f"does not fit: {total}; because of {'; '.join(parts)}"


def _advice(demand: Demand, hz: float | None, free: float, ms: float, others: str, gpu: bool) -> str:
    if hz is None:
        return f"{demand.dnn}: no rate fits beside {others}"
    each = "" if len(demand.cameras) == 1 else f" of its {len(demand.cameras)} cameras together"
    return (
        f"{demand.dnn}: at most {three_digits(hz)} Hz{each} instead of {three_digits(demand.hz)}, or "
        f"{three_digits(free / demand.hz * 1e3)} ms per frame instead of {three_digits(ms)} ({_cheaper(gpu)})"
    )


def _others_text(others: bool, taken: float, need: str) -> str:
    """What else runs on the device. others: whether there are other DNNs. taken: workers' share for image decoding."""
    if not taken:
        return f"the others, which need {need}"
    return f"the others and image decoding, which need {need}" if others else f"image decoding, which needs {need}"


def _cheaper(gpu: bool) -> str:
    return "multi-dnn decompose, a smaller input" + (", fp16" if gpu else "")


def _check(demands: Sequence[Demand], workers: int, limit: float) -> None:
    if workers < 1:
        raise ValueError(f"workers is {workers}; allowed: at least 1")
    if not 0.0 < limit <= 1.0:
        raise ValueError(f"limit is {limit}; allowed: above 0, up to 1")
    if not demands:
        raise ValueError("demands is empty; expected: at least one DNN")
    names = [demand.dnn for demand in demands]
    if len(set(names)) < len(names):
        raise ValueError(f"demands name a DNN twice: {', '.join(names)}")
    for demand in demands:
        names_of_times = ("alone_ms", "crowded_ms", "shared_ms", "wait_ms", "batch")
        numbers = {**{name: getattr(demand, name) for name in names_of_times}, **demand.cameras}
        for name, value in numbers.items():
            if not 0.0 <= value < 1e9:
                raise ValueError(f"demand of {demand.dnn}: {name} is {value}; allowed: 0 to 1e9")
