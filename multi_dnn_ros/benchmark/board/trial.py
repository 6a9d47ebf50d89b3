"""A trial of one rate on a running node: how many results are missing, and what the published ones cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multi_dnn_ros.benchmark.board.machine import SensorLog, summarize
from multi_dnn_ros.benchmark.board.record import Latency, Trial
from multi_dnn_ros.benchmark.board.search import DROP_LIMIT, min_frames, served
from multi_dnn_ros.benchmark.board.time_plan import MIN_TRIAL_S
from multi_dnn_ros.benchmark.gpu_watch import GpuWatch
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.engine.task import DropEffect, DropReason

NOT_RECEIVED = "not_received"
#: Drops that parameters such as max_rate_hz ask for: these results do not count as missing.
_REFUSED = tuple(reason.value for reason in DropReason if reason.effect is DropEffect.REFUSED)
_WARM_UP_S = 1.0
_FIRST_IMAGE_LIMIT_S = 60.0
_REPORT_LIMIT_S = 30.0
_SETTLE_LIMIT_S = 60.0
_GPU_MEMORY = "engine processes GPU reserved (bytes)"


@dataclass(frozen=True)
class _Counts:
    """Counts of the node's report at `at_s` (system clock), which the rig read at `observed_s` (monotonic clock)."""

    at_s: float
    received: int
    offered: int
    published: int
    dropped: dict[str, int]
    observed_s: float


def run_trial(
    rig: Rig, rate_hz: float, min_s: float, max_s: float, sensors: SensorLog, progress: Callable[[], None]
) -> Trial:
    """Start the cameras at this rate and count what is served.

    The trial ends when the bounds of the share of drops decide (:func:`~multi_dnn_ros.benchmark.board.search.served`),
    but not before min_s if it passes, and after max_s in any case. The bounds are computed whenever the number of
    frames has doubled, and once per second from min_s on.
    """

    def spin(seconds: float) -> None:
        def step(_: float) -> None:
            sensors.poll()
            progress()

        rig.spin(seconds, step)

    before = _received(rig)
    for name in rig.plans:
        rig.start_camera(name, rate_hz)

    def silent() -> list[str]:
        return [name for name, count in _received(rig).items() if count <= before[name]]

    if not rig.until(lambda: not silent(), _FIRST_IMAGE_LIMIT_S):
        raise CommandError(
            f"the node received no image of {', '.join(silent())} within {_FIRST_IMAGE_LIMIT_S:g} s; see {rig.folder}"
        )
    gpu_watch = GpuWatch(_gpu_index(rig))
    spin(_WARM_UP_S)
    begin = _read(rig)
    with gpu_watch as watch:
        next_check = max(min_frames(), MIN_TRIAL_S * rate_hz)
        while True:
            end = _read(rig)
            frames, elapsed_s = rate_hz * (end.at_s - begin.at_s), end.observed_s - begin.observed_s
            share = _missing(rig, begin, end, rate_hz)[1]
            if frames >= next_check:
                verdict = served(share, frames)
                if verdict is False or (verdict is True and elapsed_s >= min_s):
                    break
                next_check = 2.0 * frames if elapsed_s < min_s else frames + rate_hz
            if elapsed_s >= max_s:
                break
            spin(min(1.0, max(0.05, max_s - elapsed_s)))
        memory_bytes = rig.samples[-1].resident_bytes
    trial = _trial(rig, rate_hz, begin, end, sensors, watch, memory_bytes)
    for name in list(rig.cameras):
        rig.stop_camera(name)
    rig.settle(_SETTLE_LIMIT_S)
    return trial


def _gpu_index(rig: Rig) -> int:
    number = (rig.value("node", "device") or "").partition(":")[2]
    return int(number) if number.isdecimal() else 0


def _received(rig: Rig) -> dict[str, int]:
    """Number of images received from each camera, according to the node's latest report."""
    return {name: int(rig.value(f"camera {name}", "received") or 0) for name in rig.plans}


def _read(rig: Rig) -> _Counts:
    """The counts of the next report."""
    seen = rig.reports
    if not rig.until(lambda: rig.reports > seen, _REPORT_LIMIT_S):
        raise CommandError(f"the node has sent no diagnostics for {_REPORT_LIMIT_S:g} s; see {rig.node.log}")
    accounts = rig.accounts().values()
    reasons = {reason for stream in accounts for reason in stream["dropped"]}
    return _Counts(
        rig.reported_s,
        sum(_received(rig).values()),
        sum(stream["offered"] for stream in accounts),
        sum(stream["published"] for stream in accounts),
        {reason: sum(stream["dropped"].get(reason, 0) for stream in accounts) for reason in reasons},
        rig.now(),
    )


def _missing(rig: Rig, begin: _Counts, end: _Counts, rate_hz: float) -> tuple[dict[str, int], float]:
    """Missing results by reason, and their share of the results that the rate and the parameters ask for.

    Frames in progress are not missing. One image more or less at each end of the trial is not a loss.
    """
    counts = {reason: count - begin.dropped.get(reason, 0) for reason, count in end.dropped.items()}
    refused, offered = sum(counts.pop(reason, 0) for reason in _REFUSED), end.offered - begin.offered
    # Results asked for per image. Of the images that the node did not receive, the same share would have been refused.
    wanted = len(rig.streams) / len(rig.plans) * (1.0 - refused / offered if offered else 1.0)
    sent = rate_hz * (end.at_s - begin.at_s) * len(rig.plans)
    lost = sent - (end.received - begin.received) - len(rig.plans)
    dropped = {reason: count for reason, count in sorted(counts.items()) if count > 0}
    if round(lost * wanted) > 0:
        dropped[NOT_RECEIVED] = round(lost * wanted)
    return dropped, sum(dropped.values()) / max(1.0, sent * wanted)


def _trial(
    rig: Rig, rate_hz: float, begin: _Counts, end: _Counts, sensors: SensorLog, watch: GpuWatch, memory_bytes: int
) -> Trial:
    dropped, share = _missing(rig, begin, end, rate_hz)
    seconds = end.at_s - begin.at_s
    frames = rate_hz * seconds
    results = end.published - begin.published
    latencies = [
        latency for stream in rig.receipts.values() for latency in stream.between(begin.observed_s, end.observed_s)
    ]
    samples = [sample for sample in rig.samples if begin.observed_s <= sample.at_s <= end.observed_s]
    cores = 0.0
    if len(samples) > 1:
        cores = (samples[-1].cpu_s - samples[0].cpu_s) / (samples[-1].at_s - samples[0].at_s)
    verdict = served(share, frames)
    summary = summarize(sensors.between(begin.observed_s, end.observed_s))
    gpu = watch.figures() if (rig.value("node", "device") or "").startswith("cuda") else {}
    gpu_memory = int(rig.value("node", _GPU_MEMORY) or 0)
    results_hz = results / seconds
    return Trial(
        rate_hz=rate_hz,
        seconds=seconds,
        frames=frames,
        results=results,
        results_hz=results_hz,
        dropped=dropped,
        drop_share=min(1.0, share),
        passed=verdict if verdict is not None else share < DROP_LIMIT,
        decided=verdict is not None,
        latency_ms=Latency.model_validate(distribution(latencies)) if latencies else None,
        cpu_cores=cores,
        cpu_ms_per_result=1e3 * cores / results_hz if results else None,
        memory_bytes=memory_bytes,
        gpu_share=gpu.get("busy_mean", summary.gpu_share),
        gpu_memory_bytes=gpu_memory or None,
        power_w=summary.power_w,
        energy_j_per_result=summary.power_w / results_hz if summary.power_w is not None and results else None,
        temperature_c=summary.temperature_c,
        hottest_sensor=summary.hottest_sensor,
        throttled=summary.throttled,
    )
