"""A trial of one rate on a running node: how many results are missing, and what the published ones cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.board.machine import SensorLog, summarize
from multi_dnn_ros.benchmark.board.search import DROP_LIMIT, min_frames, served
from multi_dnn_ros.benchmark.gpu_watch import GpuWatch
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.engine.task import DropEffect, DropReason

NOT_RECEIVED = "not_received"
#: Minimum duration of a trial, at any rate.
MIN_TRIAL_S = 3.0
#: Drops that parameters such as max_rate_hz ask for: these results do not count as missing.
_REFUSED = tuple(reason.value for reason in DropReason if reason.effect is DropEffect.REFUSED)
_WARM_UP_S = 1.0
_FIRST_IMAGE_LIMIT_S = 60.0
_REPORT_LIMIT_S = 30.0
_SETTLE_LIMIT_S = 60.0
_GPU_MEMORY = "engine processes GPU reserved (bytes)"


@dataclass(frozen=True)
class Trial:
    """A trial of one rate. frames: images that each camera should have sent. results: published by the node.

    dropped: results that are missing, by reason; `not_received`: their image did not reach the node, or was not sent.
    decided: whether the bounds of the share of drops decided, not only the share itself. latency_ms: from an image's
    stamp to the receipt of its result. CPU and memory are those of the node with its engine processes; power and
    temperature those of the whole computer; None: not readable. ros2_benchmark: see :func:`ros2_benchmark_metrics`.
    """

    rate_hz: float
    seconds: float
    frames: float
    results: int
    results_hz: float
    dropped: dict[str, int]
    drop_share: float
    passed: bool
    decided: bool
    latency_ms: dict[str, float] | None
    cpu_cores: float
    cpu_ms_per_result: float | None
    memory_bytes: int
    gpu_share: float | None = None
    gpu_memory_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: dict[str, str] = field(default_factory=dict)
    ros2_benchmark: dict[str, float] = field(default_factory=dict)


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
    frames has doubled, and once per second from min_s on. Raises CommandError if the node does not report.
    """

    def step(_: float) -> None:
        sensors.poll()
        progress()

    before = _received(rig)
    for name in rig.plans:
        rig.start_camera(name, rate_hz)

    def silent() -> list[str]:
        return [name for name, count in _received(rig).items() if count <= before[name]]

    if not rig.until(lambda: not silent(), _FIRST_IMAGE_LIMIT_S):
        raise CommandError(
            f"the node received no image of {', '.join(silent())} within {_FIRST_IMAGE_LIMIT_S:g} s; see {rig.folder}"
        )
    number = (rig.value("node", "device") or "").partition(":")[2]
    gpu_watch = GpuWatch(int(number) if number.isdecimal() else 0)
    rig.spin(_WARM_UP_S, step)
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
            rig.spin(min(1.0, max(0.05, max_s - elapsed_s)), step)
        memory_bytes = rig.samples[-1].memory_bytes
    trial = _trial(rig, rate_hz, begin, end, sensors, watch, memory_bytes)
    for name in list(rig.cameras):
        rig.stop_camera(name)
    rig.settle(_SETTLE_LIMIT_S)
    return trial


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
    span = begin.observed_s, end.observed_s
    latencies = [latency for stream in rig.receipts.values() for latency in stream.between(*span)]
    samples = [sample for sample in rig.samples if span[0] <= sample.at_s <= span[1]]
    cores = 0.0
    if len(samples) > 1:
        cores = (samples[-1].cpu_s - samples[0].cpu_s) / (samples[-1].at_s - samples[0].at_s)
    verdict = served(share, frames)
    summary = summarize(sensors.between(*span))
    gpu = watch.figures() if (rig.value("node", "device") or "").startswith("cuda") else {}
    streams = [stream for stream in rig.switched_on.values() if stream.between(*span)]
    slowest = min(streams, key=lambda stream: len(stream.between(*span)), default=None)
    return Trial(
        rate_hz=rate_hz,
        seconds=seconds,
        frames=frames,
        results=results,
        results_hz=results / seconds,
        dropped=dropped,
        drop_share=min(1.0, share),
        passed=verdict if verdict is not None else share < DROP_LIMIT,
        decided=verdict is not None,
        latency_ms=distribution(latencies) if latencies else None,
        cpu_cores=cores,
        cpu_ms_per_result=1e3 * cores * seconds / results if results else None,
        memory_bytes=memory_bytes,
        gpu_share=gpu.get("busy_mean", summary.gpu_share),
        gpu_memory_bytes=int(rig.value("node", _GPU_MEMORY) or 0) or None,
        power_w=summary.power_w,
        temperature_c=summary.temperature_c,
        throttled=summary.throttled,
        ros2_benchmark=ros2_benchmark_metrics(slowest.times(*span), slowest.between(*span), rate_hz, frames)
        if slowest is not None
        else {},
    )


def ros2_benchmark_metrics(
    times_s: list[float], latencies_ms: list[float], rate_hz: float, frames: float
) -> dict[str, float]:
    """The metrics of one stream under the names, and with the definitions, of NVIDIA's ros2_benchmark.

    times_s, latencies_ms: of each result, at least one. Rates in Hz, times in ms. The jitter is the absolute difference
    of consecutive times between results; it needs three results.
    """
    duration_s = times_s[-1] - times_s[0]
    metrics: dict[str, Any] = {
        "RECEIVED_DURATION": 1e3 * duration_s,
        "MEAN_PLAYBACK_FRAME_RATE": rate_hz,
        "MEAN_FRAME_RATE": len(times_s) / duration_s if duration_s > 0.0 else 0.0,
        "NUM_MISSED_FRAMES": max(0, round(frames) - len(times_s)),
        "NUM_FRAMES_SENT": round(frames),
        "FIRST_SENT_RECEIVED_LATENCY": latencies_ms[0],
        "LAST_SENT_RECEIVED_LATENCY": latencies_ms[-1],
        "MAX_LATENCY": max(latencies_ms),
        "MIN_LATENCY": min(latencies_ms),
        "MEAN_LATENCY": sum(latencies_ms) / len(latencies_ms),
    }
    if len(times_s) > 2:
        jitter = 1e3 * np.abs(np.diff(np.diff(times_s)))
        metrics |= {
            "MAX_JITTER": float(jitter.max()),
            "MIN_JITTER": float(jitter.min()),
            "MEAN_JITTER": float(jitter.mean()),
            "STD_DEV_JITTER": float(jitter.std()),
        }
    return {f"BasicPerformanceMetrics.{name}": float(value) for name, value in metrics.items()}
