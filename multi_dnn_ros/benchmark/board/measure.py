"""The run: each mix of DNNs with a node of its own; a search for the highest rate, then a long trial at this rate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm

from multi_dnn_ros.benchmark.board.report import ros2_benchmark_metrics
from multi_dnn_ros.benchmark.board.search import RateSearch
from multi_dnn_ros.benchmark.observation import cpu_cores
from multi_dnn_ros.benchmark.rig import CameraPlan, Rig
from multi_dnn_ros.common.errors import CommandError, UsageError, summarize_error
from multi_dnn_ros.common.processes import interrupts
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.engine.task import DropEffect, DropReason
from multi_dnn_ros.settings.schema import NodeConfig

#: A rate is served if less than this share of the results is missing.
DROP_LIMIT = 0.05
NOT_RECEIVED = "not_received"
_TOTALS = ("received", "offered", "published")
#: Drops that parameters such as max_rate_hz ask for: these results do not count as missing.
_REFUSED = tuple(reason.value for reason in DropReason if reason.effect is DropEffect.REFUSED)
#: The node reports more often than by default, so that short trials are counted exactly.
_REPORT_PERIOD_S = 0.25
_MIN_RATE_HZ = 0.5
#: Length of a trial: this time and this number of frames, at least.
_TRIAL_S, _TRIAL_FRAMES = 3.0, 60
#: Time of a trial in which nothing is measured: the start of the camera processes, and the end.
_OVERHEAD_S = 5.0
#: Limits of the long trial at the highest rate, and the share of a mix's time that is kept for it.
_MIN_LONG_S, _MAX_LONG_S, _LONG_SHARE = 8.0, 300.0, 0.25
_WARM_UP_S = 1.0
_FIRST_IMAGE_LIMIT_S, _REPORT_LIMIT_S, _SETTLE_LIMIT_S = 60.0, 30.0, 60.0


@dataclass(frozen=True)
class BoardPlan:
    """configs: the node's parameters by the name of the mix. size: (width, height) of the images. encoding: of raw
    images, or jpeg. max_rate_hz: highest rate to try. seed: of the images.
    """

    configs: dict[str, NodeConfig]
    minutes: float
    cameras: int = 1
    size: tuple[int, int] = (640, 480)
    encoding: str = "rgb8"
    max_rate_hz: float = 200.0
    seed: int = 0


#: Figures of a trial, for JSON; see :func:`run_trial`.
Trial = dict[str, Any]


def measure_board(
    plan: BoardPlan, folder: Path, save: Callable[[dict[str, Any]], None], progress: Callable[[int, int, str], None],
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, Any]:  # fmt: skip
    """Find the highest rate of each mix; returns the figures by mix. folder: for logs.

    save: called with the figures so far after each trial. progress: called with seconds, of how many, and the mix. A
    mix that fails has `error` instead of a highest rate. KeyboardInterrupt is raised after the figures have been saved.
    """
    mixes: dict[str, dict[str, Any]] = {}
    length_s = 60.0 * plan.minutes
    end_s = time.monotonic() + length_s
    with interrupts():
        for number, (name, config) in enumerate(plan.configs.items()):
            dnns = {dnn: settings.model for dnn, settings in config.dnns.items()}
            mix: dict[str, Any] = {"dnns": dnns, "device": "", "highest_hz": None, "failing_hz": None, "trials": [],
                                   "at_highest": None, "error": ""}  # fmt: skip
            mixes[name] = mix

            def done(found: Trial, name: str = name, mix: Any = mix) -> None:
                mix["trials"].append(found)
                progress(round(length_s - max(0.0, end_s - time.monotonic())), round(length_s), name)
                served = "served" if found["passed"] else "not served"
                say(f"{name}: {found['rate_hz']:.4g} Hz: {found['results_hz']:.1f} results/s, "
                    f"{found['drop_share']:.1%} missing in {found['frames']:.0f} frames: {served}")  # fmt: skip
                save(mixes)

            mix_end_s = time.monotonic() + (end_s - time.monotonic()) / (len(plan.configs) - number)
            cameras = [CameraPlan(f"camera{index}", plan.size, plan.encoding, 1.0) for index in range(plan.cameras)]
            config = config.model_copy(update={"diagnostics_period_s": _REPORT_PERIOD_S})
            try:
                with Rig(folder / f"{number + 1}_{name}", config, cameras, plan.seed) as rig:
                    rig.sample_s = 0.5
                    mix["device"] = rig.value("node", "device") or "cpu"
                    _search(rig, plan.max_rate_hz, mix, mix_end_s, done)
                    for problem in rig.problems:
                        say(problem)
            except (CommandError, UsageError, ValueError, RuntimeError, OSError) as error:
                mix["error"] = summarize_error(error)
                say(f"{name} failed: {mix['error']}")
            save(mixes)
    return mixes


def _search(rig: Rig, max_rate_hz: float, mix: dict[str, Any], end_s: float, done: Callable[[Trial], None]) -> None:
    """Search, and measure at the highest rate for the rest of the time."""
    long_s = min(_MAX_LONG_S, max(_MIN_LONG_S, _LONG_SHARE * (end_s - time.monotonic())))
    search = RateSearch(_MIN_RATE_HZ, max_rate_hz)

    def measured(rate_hz: float, seconds: float) -> bool:
        found = run_trial(rig, rate_hz, max(seconds, _TRIAL_FRAMES / rate_hz))
        search.add(rate_hz, found["passed"])
        mix.update(highest_hz=search.best_hz, failing_hz=search.failing_hz)
        done(found)
        return bool(found["passed"])

    while (rate_hz := search.next_hz()) is not None:
        seconds = max(_TRIAL_S, _TRIAL_FRAMES / rate_hz)
        if mix["trials"] and time.monotonic() + seconds + 2 * _OVERHEAD_S + long_s > end_s:
            break
        measured(rate_hz, _TRIAL_S)
    left_s = end_s - time.monotonic() - _OVERHEAD_S
    while (rate_hz := search.best_hz) is not None and not measured(rate_hz, min(_MAX_LONG_S, max(_MIN_LONG_S, left_s))):
        left_s = end_s - time.monotonic() - _OVERHEAD_S  # a rate that is not served for long is lowered
        if left_s < _MIN_LONG_S:
            break
    of_best = [it for it in mix["trials"] if it["rate_hz"] == mix["highest_hz"] and it["passed"]]
    mix["at_highest"] = of_best[-1] if of_best else None


def run_trial(rig: Rig, rate_hz: float, seconds: float) -> Trial:
    """Start the cameras at this rate and count for `seconds` what is served, once every camera has sent an image.

    frames: images that each camera should have sent. results: published by the node. dropped: results that are missing,
    by reason; `not_received`: their image did not reach the node, or was not sent. latency_ms: from an image's stamp to
    the receipt of its result. CPU and memory are those of the node with its engine processes; power (mean) and
    temperature (highest) those of the whole computer; None: not readable. throttled: reason by name of what was
    throttled. ros2_benchmark: see :func:`ros2_benchmark_metrics`. Raises CommandError if the node does not report.
    """
    before = _received(rig)
    for name in rig.plans:
        rig.start_camera(name, rate_hz)

    def silent() -> list[str]:
        return [name for name, count in _received(rig).items() if count <= before[name]]

    if not rig.until(lambda: not silent(), _FIRST_IMAGE_LIMIT_S):
        raise CommandError(
            f"the node received no image of {', '.join(silent())} within {_FIRST_IMAGE_LIMIT_S:g} s; see {rig.folder}"
        )
    rig.spin(_WARM_UP_S)
    begin = _read(rig)
    rig.spin(seconds)
    trial = _figures(rig, rate_hz, begin, _read(rig))
    rig.stop_cameras()
    if not rig.settle(_SETTLE_LIMIT_S):
        raise CommandError(f"the node still has frames in progress {_SETTLE_LIMIT_S:g} s after the last one was sent")
    return trial


def _received(rig: Rig) -> dict[str, int]:
    """Number of images received from each camera, according to the node's latest report."""
    return {name: int(rig.value(f"camera {name}", "received") or 0) for name in rig.plans}


#: A report of the node: its time on the system clock, when it was read on the monotonic clock, and its counts:
#: `received`, `offered`, `published`, and drops by reason, each over all streams.
_Counts = tuple[float, float, Counter[str]]


def _read(rig: Rig) -> _Counts:
    """The counts of the next report."""
    seen = rig.reports
    if not rig.until(lambda: rig.reports > seen, _REPORT_LIMIT_S):
        raise CommandError(f"the node has sent no diagnostics for {_REPORT_LIMIT_S:g} s; see {rig.folder}")
    counts = Counter(received=sum(_received(rig).values()))
    for stream in rig.accounts().values():
        counts.update(offered=stream["offered"], published=stream["published"], **stream["dropped"])
    return rig.reported_s, time.monotonic(), counts


def _missing(rig: Rig, counts: Counter[str], sent: float) -> tuple[dict[str, int], float]:
    """Missing results by reason, and their share of the results that the rate and the parameters ask for. counts: of
    the trial. sent: images of all cameras.

    Frames in progress are not missing. One image more or less at each end of the trial is not a loss.
    """
    drops = {reason: count for reason, count in sorted(counts.items()) if reason not in _TOTALS}
    refused, offered = sum(drops.pop(reason, 0) for reason in _REFUSED), counts["offered"]
    # Results asked for per image. Of the images that the node did not receive, the same share would have been refused.
    wanted = len(rig.streams) / len(rig.plans) * (1.0 - refused / offered if offered else 1.0)
    lost = round((sent - counts["received"] - len(rig.plans)) * wanted)
    dropped = {**drops, **({NOT_RECEIVED: lost} if lost > 0 else {})}
    return dropped, sum(dropped.values()) / max(1.0, sent * wanted)


def _figures(rig: Rig, rate_hz: float, begin: _Counts, end: _Counts) -> Trial:
    seconds, span, counts = end[0] - begin[0], (begin[1], end[1]), end[2] - begin[2]
    frames, results = rate_hz * seconds, counts["published"]
    dropped, share = _missing(rig, counts, frames * len(rig.plans))
    streams = [received for stream in rig.receipts.values() if len((received := stream.between(*span))[0])]
    latencies = [latency for _, latencies_ms in streams for latency in latencies_ms.tolist()]
    slowest = min(streams, key=lambda received: len(received[0]), default=None)
    samples = [sample for sample in rig.samples if span[0] <= sample.at_s <= span[1]]
    cores, latest = cpu_cores(samples), rig.samples[-1]
    powers = [power for sample in samples if (power := sample.sensors.total_w) is not None]
    temperatures = [value for sample in samples for value, _ in sample.sensors.temperatures_c.values()]
    return {
        "rate_hz": rate_hz,
        "seconds": seconds,
        "frames": frames,
        "results": results,
        "results_hz": results / seconds,
        "dropped": dropped,
        "drop_share": min(1.0, share),
        "passed": share < DROP_LIMIT,
        "latency_ms": distribution(latencies) if latencies else None,
        "cpu_cores": cores,
        "cpu_ms_per_result": 1e3 * cores * seconds / results if results else None,
        "memory_bytes": latest.memory_bytes,
        "gpu_memory_bytes": latest.gpu_bytes or None,
        "power_w": fmean(powers) if powers else None,
        "temperature_c": max(temperatures, default=None),
        "throttled": {name: reason for sample in samples for name, reason in sample.sensors.throttled.items()},
        "ros2_benchmark": ros2_benchmark_metrics(*slowest, rate_hz, frames) if slowest is not None else {},
    }
