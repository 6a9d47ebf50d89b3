"""A long run under overload: are latency, memory and accounts at the end the same as at the beginning?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.accounts import discrepancy, stream_accounts
from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.benchmark.gpu_watch import GpuWatch
from multi_dnn_ros.benchmark.node_config import Stream
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.samples import NodeSample, Receipts
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import counts_text, distribution, table
from multi_dnn_ros.settings.schema import NodeConfig

FLOODED = "front"
#: Cameras of different size, rate, encoding and transport.
CAMERAS = (
    CameraPlan(FLOODED, (320, 240), "rgb8", 60.0),
    CameraPlan("left", (640, 480), "", 10.0),
    CameraPlan("rear", (480, 360), "yuv422_yuy2", 5.0),
)
#: The flooding camera sends at this multiple of the rate at which it was served in calibration.
_FLOOD = 4.4
_CALIBRATION_S = 15.0
#: The engine is saturated once it serves less than this share of a rate. Above it, a higher rate can yield more: a GPU
#: that serves 70 of 90 Hz, because frames arrive in bursts, serves 140 of 300.
_SATURATED = 0.5
#: Approximate maximum rate of one camera process.
_MAX_CAMERA_HZ = 400.0
#: Minimum number of memory samples per run, so that the windows of a short run have some, too.
_SAMPLES = 30
#: Time in which the node must end. It is killed only later, at _END_LIMIT_S, to distinguish slow from hanging.
_END_S = 3.0
_END_LIMIT_S = 60.0


@dataclass(frozen=True)
class LoadRun:
    """Measurements and the data for plots. Times are on the monotonic clock."""

    figures: dict[str, Any]
    receipts: Mapping[Stream, Receipts]
    samples: Sequence[NodeSample]
    begin_s: float
    end_s: float


def measure_load(
    config: NodeConfig, folder: Path, seconds: float, seed: int = 0, cameras: Sequence[CameraPlan] = ()
) -> LoadRun:
    """Serve cameras for `seconds`: the given ones at their rates; by default three, one at over four times the rate
    that can be served.

    The last window is compared with the second one (windows of a minute in a run of ten).
    """
    flooded = None if cameras else FLOODED
    cameras = cameras or CAMERAS
    number = config.device.partition(":")[2] if config.device.startswith("cuda") else ""
    with Rig(folder, config, cameras, seed) as rig:
        start_cameras(rig)
        if flooded is not None:
            rig.start_camera(flooded, flooding_rate(rig))
        rig.spin(3.0)  # discovery of the new camera process
        rig.sample_s = min(1.0, seconds / _SAMPLES)
        before, begin_s = rig.accounts(), rig.samples[-1].at_s
        with (
            GpuWatch(int(number or 0)) as gpu_watch,
            time_bar(seconds, "under load") as bar,
        ):
            rig.spin(seconds, progress=bar.update)
        after, end_s = rig.accounts(), rig.samples[-1].at_s
        for plan in cameras:
            rig.stop_camera(plan.name)
        with suppress(CommandError):  # frames still in progress fail the accounts; a dead process raises again below
            rig.settle()
        accounts = stream_accounts(rig)
        device, gpu_bytes = rig.value("node", "device"), _gpu_reserved_bytes(rig)
        rig.spin(2.0)
        stopped_s = rig.now()
        rig.node.stop(_END_LIMIT_S)
        ended_after_s, exit_code = rig.now() - stopped_s, rig.node.exit_code()
    rates = {
        stream: {
            key: (after[stream][key] - before[stream][key]) / (end_s - begin_s) for key in ("offered", "published")
        }
        for stream in after
    }
    figures = {
        "seconds": seconds,
        "seed": seed,
        "device": device,
        "gpu_reserved_bytes": gpu_bytes,
        "gpu": gpu_watch.figures(),
        "cpu_cores": distribution([sample.cpu for sample in rig.samples if begin_s < sample.at_s <= end_s]),
        "cameras": {
            plan.name: {
                "size": list(plan.size),
                "encoding": plan.encoding or "jpeg (CompressedImage)",
                "rate_hz": rig.rates_hz[plan.name],
                "received": next(
                    counts["received"] for name, counts in accounts.items() if name.endswith(f" on {plan.name}")
                ),
            }
            for plan in cameras
        },
        "flood_ratio": min(
            rate["offered"] / max(rate["published"], 1e-9) for (_, camera), rate in rates.items() if camera == flooded
        )
        if flooded is not None
        else None,
        "latency": _latency(rig.receipts, begin_s, end_s),
        "memory": _memory(rig.samples, begin_s, end_s),
        "accounts": {name: {**counts, "exact": not discrepancy(counts)} for name, counts in accounts.items()},
        "fairness": _fairness(rates, [plan.name for plan in cameras], list(config.dnns)),
        "ended_after_s": ended_after_s,
        "exit_code": exit_code,
    }
    figures["passed"] = not load_problems(figures)
    return LoadRun(figures, rig.receipts, rig.samples, begin_s, end_s)


def _gpu_reserved_bytes(rig: Rig) -> int | None:
    """Memory reserved by the engine processes, or with `isolation: none` by the node; None without a GPU."""
    found = rig.value("node", "engine processes GPU reserved (bytes)") or rig.value("node", "GPU reserved (bytes)")
    return int(found) if found is not None else None


def start_cameras(rig: Rig) -> None:
    """Start all cameras, and wait until every DNN that is switched on has produced a result for each."""
    for name in rig.plans:
        rig.start_camera(name)
    expected = rig.switched_on
    if not rig.until(lambda: all(map(len, expected.values())), 60.0):
        silent = ", ".join(f"{dnn} on {camera}" for (dnn, camera), receipts in expected.items() if not len(receipts))
        raise CommandError(f"no results of {silent} after 60 s; see {rig.folder}")


def flooding_rate(rig: Rig) -> float:
    """Rate for the flooding camera, derived from its served rate while all cameras send."""
    rate_hz = rig.rates_hz[FLOODED]
    while True:
        before = {stream: len(receipts) for stream, receipts in rig.receipts.items()}
        rig.spin(_CALIBRATION_S)
        served = max(
            (len(receipts) - before[dnn, camera]) / _CALIBRATION_S
            for (dnn, camera), receipts in rig.receipts.items()
            if camera == FLOODED
        )
        if served < _SATURATED * rate_hz or rate_hz >= _MAX_CAMERA_HZ:
            return float(min(max(10.0, np.ceil(_FLOOD * served)), _MAX_CAMERA_HZ))
        rate_hz = min(3.0 * rate_hz, _MAX_CAMERA_HZ)
        rig.start_camera(FLOODED, rate_hz)
        rig.spin(3.0)


def _window_s(begin_s: float, end_s: float) -> float:
    """A minute in a run of ten minutes; proportional for shorter runs, up to a minute for longer ones."""
    return min(60.0, (end_s - begin_s) / 5.0)


def _latency(receipts: Mapping[Stream, Receipts], begin_s: float, end_s: float) -> dict[str, Any]:
    """Latency from stamp to receipt, of all streams together and of each, in the second and in the last window."""
    window = _window_s(begin_s, end_s)

    def compared(streams: Iterable[Receipts]) -> dict[str, Any]:
        streams = list(streams)
        second = [latency for each in streams for latency in each.between(begin_s + window, begin_s + 2 * window)]
        last = [latency for each in streams for latency in each.between(end_s - window, end_s)]
        if not second or not last:
            return {}
        figures = {"second_window_ms": distribution(second), "last_window_ms": distribution(last)}
        return {
            **figures,
            "p95_last_over_second": figures["last_window_ms"]["p95"] / figures["second_window_ms"]["p95"],
        }

    return {
        "window_s": window,
        "all": compared(receipts.values()),
        **{f"{dnn} on {camera}": compared([stream]) for (dnn, camera), stream in receipts.items()},
    }


def _memory(samples: Sequence[NodeSample], begin_s: float, end_s: float) -> dict[str, Any]:
    window = _window_s(begin_s, end_s)
    first_s, last_s = begin_s + window, begin_s + 2 * window

    def nearest(time_s: float) -> NodeSample:  # if the machine stalled for a whole window
        return min(samples, key=lambda sample: abs(sample.at_s - time_s))

    second = [s for s in samples if first_s <= s.at_s < last_s] or [nearest(first_s)]
    later = [s for s in samples if last_s <= s.at_s <= end_s] or [nearest(end_s)]
    reference = max(s.resident_bytes for s in second)
    return {
        "second_window_bytes": reference,
        "most_afterwards_bytes": max(s.resident_bytes for s in later),
        "growth": max(s.resident_bytes for s in later) / reference - 1.0,
        "threads": [second[0].threads, later[-1].threads],
        "open_files": [second[0].files, later[-1].files],
    }


def _fairness(
    rates: Mapping[Stream, Mapping[str, float]], cameras: Sequence[str], dnns: Sequence[str]
) -> dict[str, Any]:
    """Rate of each camera per DNN relative to its fair share: its full demand, or an equal part of the remaining
    capacity.
    """
    table = {}
    for dnn in dnns:
        served = [camera for camera in cameras if (dnn, camera) in rates]
        wanted = {camera: rates[dnn, camera]["offered"] for camera in served}
        got = {camera: rates[dnn, camera]["published"] for camera in served}
        share = fair_shares(wanted, sum(got.values()))
        table[dnn] = {
            camera: {"wanted_hz": wanted[camera], "published_hz": got[camera], "share_hz": share[camera],
                     "of_share": got[camera] / share[camera] if share[camera] else 1.0}
            for camera in served
        }  # fmt: skip
    return {"least_of_share": min(row["of_share"] for dnn in table.values() for row in dnn.values()), "dnns": table}


def fair_shares(wanted: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Max-min fair shares: none exceeds its demand, and unused shares are split equally among the others."""
    shares: dict[str, float] = {}
    left = capacity
    for position, (name, rate) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        shares[name] = min(rate, left / (len(wanted) - position))
        left -= shares[name]
    return shares


def load_problems(figures: Mapping[str, Any]) -> list[str]:
    """Violated conditions, one sentence each; empty if all are met."""
    problems = []
    latency, memory = figures["latency"]["all"].get("p95_last_over_second", np.inf), figures["memory"]["growth"]
    if latency > 1.10:
        problems.append(f"latency p95 of the last window is {latency:.2f} times the second's; allowed: at most 1.10")
    if memory >= 0.01:
        problems.append(f"resident memory grew by {memory:.1%} after the second window; allowed: under 1 %")
    problems += [
        f"{name}: the accounts do not add up" for name, counts in figures["accounts"].items() if not counts["exact"]
    ]
    flood = figures["flood_ratio"]
    if flood is not None and flood < 4.0 and figures["cameras"][FLOODED]["rate_hz"] < _MAX_CAMERA_HZ:
        problems.append(f"{FLOODED} sent {flood:.1f} times its served rate; required: at least 4")
    if flood is not None and figures["fairness"]["least_of_share"] < 0.8:
        problems.append(
            f"a camera got {figures['fairness']['least_of_share']:.0%} of its share; required: at least 80 %"
        )
    if figures["ended_after_s"] > _END_S or figures["exit_code"] != 0:
        problems.append(
            f"the node ended after {figures['ended_after_s']:.1f} s with exit code {figures['exit_code']}; "
            f"required: within {_END_S:g} s with 0"
        )
    return problems


def load_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = []
    for stream, accounts in figures["accounts"].items():
        dnn, _, camera = stream.partition(" on ")
        share = figures["fairness"]["dnns"][dnn][camera]
        latency = figures["latency"].get(stream) or {}
        second, last = (latency.get(f"{name}_window_ms", {}) for name in ("second", "last"))
        dropped = counts_text(accounts["dropped"])
        rows.append([stream, f"{share['wanted_hz']:.1f}", f"{share['published_hz']:.1f}", f"{share['of_share']:.0%}",
                     f"{second.get('p95', np.nan):.0f}", f"{last.get('p95', np.nan):.0f}",
                     f"{last.get('p99', np.nan):.0f}", str(accounts["offered"]), str(accounts["published"]), dropped,
                     "yes" if accounts["exact"] else "NO"])  # fmt: skip
    header = ["stream", "offered Hz", "published Hz", "of fair share", "p95 ms, second window",
              "p95 ms, last window", "p99 ms, last window", "offered", "published", "dropped", "exact"]  # fmt: skip
    memory, latency = figures["memory"], figures["latency"]["all"]
    lines = [
        table(header, rows),
        f"latency p95 of all streams, last window over second: {latency.get('p95_last_over_second', np.nan):.3f}",
        f"resident memory after the second window: {memory['growth']:+.2%} of "
        f"{memory['second_window_bytes'] >> 20} MiB",
        f"the node kept {figures['cpu_cores']['p50']:.2f} CPU cores busy"
        + (f", the GPU {figures['gpu']['busy_mean']:.0%} of the time" if figures["gpu"] else ""),
        *([f"{FLOODED} sent {figures['flood_ratio']:.1f} times its served rate"] if figures["flood_ratio"] else []),
        *(f"FAILED: {problem}" for problem in load_problems(figures)),
    ]
    return "\n".join(lines)
