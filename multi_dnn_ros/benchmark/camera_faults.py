"""Cameras that stall, send broken images, are killed and return: the other cameras must not be affected."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from multi_dnn_ros.benchmark.accounts import discrepancy, stream_accounts
from multi_dnn_ros.benchmark.cameras import CameraPlan, write_recording
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import distribution, table
from multi_dnn_ros.settings.schema import NodeConfig

BROKEN = "front"
#: Rates that two cores can serve, so that any change is caused by the broken camera.
CAMERAS = (
    CameraPlan(BROKEN, (320, 240), "rgb8", 4.0),
    CameraPlan("left", (640, 480), "", 4.0),
    CameraPlan("rear", (480, 360), "yuv422_yuy2", 4.0),
)
#: Allowed ratio of the other cameras' p95 to their p95 in the phase without faults.
_TOLERANCE = 1.25
_NOTICE_LIMIT_S = 60.0
_PHASES = 4
STALE, OK = 3, 0


def measure_camera_faults(config: NodeConfig, folder: Path, seconds: float, seed: int = 0) -> dict[str, Any]:
    """Latency and rate of the intact cameras for `seconds` per phase, and the node's detection times."""
    phases: dict[str, dict[str, Any]] = {}
    with Rig(folder, config, CAMERAS, seed) as rig, time_bar(_PHASES * seconds, "starting") as bar:
        broken = rig.recordings / "broken"
        write_broken(broken, CAMERAS[0])
        for plan in CAMERAS:
            rig.start_camera(plan.name)
        _wait(rig, "results of all cameras", lambda: all(map(len, rig.switched_on.values())))
        rig.spin(2.0)
        phases["all well"] = _phase(rig, seconds, "all well", bar)

        rig.cameras[BROKEN].send(signal.SIGSTOP)
        noticed_s = _wait(rig, "STALE", lambda: rig.level(f"camera {BROKEN}") == STALE)
        phases["stalled"] = {**_phase(rig, seconds, "stalled", bar), "stale_after_s": noticed_s}
        rig.cameras[BROKEN].send(signal.SIGCONT)
        phases["stalled"]["ok_again_after_s"] = _wait(rig, "OK", lambda: rig.level(f"camera {BROKEN}") == OK)

        before = _bad_images(rig)
        rig.start_camera(BROKEN, recording=broken)
        _wait(rig, "bad images of every kind", lambda: _bad_images(rig) >= before + len(_FAULTS))
        phases["broken images"] = _phase(rig, seconds, "broken images", bar)
        phases["broken images"]["counted"] = _bad_images(rig) - before

        rig.start_camera(BROKEN)
        receipts = next(found for (_, camera), found in rig.switched_on.items() if camera == BROKEN)
        seen = len(receipts)
        _wait(rig, "results", lambda: len(receipts) > seen)
        rig.kill_camera(BROKEN)
        noticed_s = _wait(rig, "STALE", lambda: rig.level(f"camera {BROKEN}") == STALE)
        phases["killed"] = {**_phase(rig, seconds, "killed", bar), "stale_after_s": noticed_s}
        seen = len(receipts)
        rig.start_camera(BROKEN)
        phases["killed"]["served_again_after_s"] = _wait(rig, "results", lambda: len(receipts) > seen)
        for plan in CAMERAS:
            rig.stop_camera(plan.name)
        rig.settle()
        accounts = {name: {**counts, "exact": not discrepancy(counts)} for name, counts in stream_accounts(rig).items()}
        device = rig.value("node", "device")
    well = phases["all well"]["latency_ms"]["p95"]
    for phase in phases.values():
        phase["p95_over_all_well"] = phase["latency_ms"]["p95"] / well
    passed = all(counts["exact"] for counts in accounts.values()) and not camera_fault_problems(phases, seconds)
    return {
        "seconds": seconds,
        "seed": seed,
        "device": device,
        "phases": phases,
        "accounts": accounts,
        "passed": passed,
    }


def camera_fault_problems(phases: Mapping[str, Mapping[str, Any]], seconds: float) -> list[str]:
    """Effects on the intact cameras, one sentence each; empty if there are none."""
    problems = []
    for name, phase in phases.items():
        if phase["p95_over_all_well"] > _TOLERANCE:
            problems.append(
                f"{name}: p95 is {phase['p95_over_all_well']:.2f} times that when all was well; "
                f"allowed: at most {_TOLERANCE}"
            )
        for stream, hz in phase["stream_hz"].items():
            before = phases["all well"]["stream_hz"][stream]
            if hz < before / _TOLERANCE - 1.0 / seconds:  # a frame may fall beyond the end of the phase
                problems.append(f"{name}: {stream} at {hz:.2f} Hz, {before:.2f} when all was well")
    return problems


def camera_fault_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = [
        [
            name,
            f"{phase['rate_hz']:.2f}",
            f"{phase['latency_ms']['p50']:.0f}",
            f"{phase['latency_ms']['p95']:.0f}",
            f"{phase['p95_over_all_well']:.2f}",
            "; ".join(f"{key.replace('_', ' ')} {phase[key]:.3g}" for key in _NOTES if key in phase),
        ]
        for name, phase in figures["phases"].items()
    ]
    header = [f"{BROKEN} is", "others: Hz per stream", "p50 ms", "p95 ms", "p95 / all well", "noticed"]
    exact = all(counts["exact"] for counts in figures["accounts"].values())
    problems = [f"\nFAILED: {problem}" for problem in camera_fault_problems(figures["phases"], figures["seconds"])]
    return table(header, rows) + f"\naccounts: {'exact' if exact else 'DO NOT ADD UP'}" + "".join(problems)


_NOTES = ("stale_after_s", "ok_again_after_s", "counted", "served_again_after_s")


#: Changes that make an image message invalid.
_FAULTS: tuple[Callable[[Any], None], ...] = (
    lambda m: setattr(m, "step", m.step - 1),
    lambda m: setattr(m, "data", m.data[: len(m.data) // 2]),
    lambda m: setattr(m, "encoding", "no_such_encoding"),
    lambda m: setattr(m, "height", 0),
    lambda m: setattr(m, "width", 4_000_000_000),
    lambda m: setattr(m, "data", m.data[:0]),
)


def write_broken(path: Path, plan: CameraPlan) -> None:
    """Write a bag of images that are invalid in different ways: sizes, step, data, encoding."""
    image = np.zeros((plan.size[1], plan.size[0], 3), np.uint8)
    remaining = list(_FAULTS)
    write_recording(path, plan, [image] * len(_FAULTS), change=lambda message: remaining.pop(0)(message))


def _phase(rig: Rig, seconds: float, name: str, bar: tqdm[Any]) -> dict[str, Any]:
    """Figures of the intact cameras from now on, over `seconds`, or longer if there is no result by then."""
    others = {stream: receipts for stream, receipts in rig.switched_on.items() if stream[1] != BROKEN}
    seen = sum(map(len, others.values()))
    begin_s = rig.now()
    bar.set_description(name)
    rig.spin(seconds, progress=bar.update)
    _wait(rig, "any result besides those", lambda: sum(map(len, others.values())) > seen)
    end_s = rig.now()
    found = {f"{dnn} on {camera}": receipts.between(begin_s, end_s) for (dnn, camera), receipts in others.items()}
    latencies = [latency for of_stream in found.values() for latency in of_stream]
    return {
        "latency_ms": distribution(latencies),
        "rate_hz": len(latencies) / (end_s - begin_s) / len(others),
        "stream_hz": {stream: len(of_stream) / (end_s - begin_s) for stream, of_stream in found.items()},
    }


def _bad_images(rig: Rig) -> int:
    return int(rig.value(f"camera {BROKEN}", "bad images") or 0)


def _wait(rig: Rig, what: str, condition: Any) -> float:
    """Wait for the condition; returns the seconds it took."""
    begin = rig.now()
    if not rig.until(condition, _NOTICE_LIMIT_S):
        raise CommandError(f"waited {_NOTICE_LIMIT_S:g} s for {what} of camera {BROKEN}; see {rig.folder}")
    return rig.now() - begin
