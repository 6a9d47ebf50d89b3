"""Kills engine processes repeatedly under load and checks that every frame is accounted for and nothing leaks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from multi_dnn_ros.benchmark.faults import KINDS, ExitingBuild, Faults, engine_pids
from multi_dnn_ros.benchmark.host_traffic import HostTraffic
from multi_dnn_ros.benchmark.process_tree import belongs_to_ros
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.reporting import counts_text, distribution, table
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.host import Build, Progress
from multi_dnn_ros.serving.process_host import ProcessHost
from multi_dnn_ros.settings.schema import NodeConfig

_SAMPLE_S = 0.2
_PICTURES = 8
#: Time limit for full recovery after the last fault.
_RECOVERY_S = 300.0
#: Time limit for replaced processes to end.
_ENDING_S = 20.0
#: Allowed growth of this process: allocators keep freed memory.
_GROWTH_BYTES, _GROWTH_FILES, _GROWTH_THREADS = 48 << 20, 4, 2


@dataclass(frozen=True)
class ChaosPlan:
    """What a run does. every_s: minimum and maximum time between faults. size: (width, height) of the images.

    restart_s, retry_s: delays of supervision, see ProcessHost. By default they are shorter than there, so that a run of
    ten minutes covers many restarts.
    """

    seconds: float
    every_s: tuple[float, float] = (5.0, 20.0)
    rate_hz: float = 30.0
    size: tuple[int, int] = (320, 240)
    seed: int = 0
    restart_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    retry_s: tuple[float, ...] = (2.0, 5.0, 10.0)


@dataclass(frozen=True)
class ResourceUse:
    """Resources of this process at one moment. engines: number of engine processes. shared: entries of /dev/shm except
    those of DDS, which other processes may create.
    """

    memory_bytes: int
    files: int
    threads: int
    engines: int
    shared: int


def measure_chaos(config: NodeConfig, plan: ChaosPlan, build: Build = default_build.build) -> dict[str, Any]:
    """Run the plan; returns figures with the verdict `passed` and, if False, the reasons as `findings`."""
    before = _resource_use()
    with tempfile.TemporaryDirectory(prefix="multi_dnn_chaos_") as folder:
        flag = Path(folder) / "exit"
        host = ProcessHost(ExitingBuild(build, str(flag)), restart_s=plan.restart_s, retry_s=plan.retry_s)
        try:
            figures = _run(config, plan, host, flag)
        finally:
            host.close()
    after = _resource_use()
    if engine_pids():
        figures["findings"].append("engine processes are left")
    if after.files > before.files + 1:
        figures["findings"].append(f"file descriptors: {before.files} before, {after.files} after the end")
    if after.shared > before.shared:
        figures["findings"].append(f"entries of /dev/shm: {before.shared} before, {after.shared} after the end")
    return {**figures, "passed": not figures["findings"]}


def chaos_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = [
        [name, str(counts["offered"]), str(counts["published"]), counts_text(counts["dropped"])]
        for name, counts in figures["streams"].items()
    ]
    faults = ", ".join(f"{count} {kind}" for kind, count in figures["faults"].items())
    gaps = figures["gap_ms"]
    lines = [
        table(["stream", "offered", "published", "dropped"], rows),
        f"{faults}; {figures['restarts']} restarts"
        + (f", gap median {gaps['p50']:.0f} ms, longest {gaps['max']:.0f} ms" if gaps else ""),
        *figures["findings"],
        "passed" if figures["passed"] else "FAILED",
    ]
    return "\n".join(lines)


def _run(config: NodeConfig, plan: ChaosPlan, host: ProcessHost, flag: Path) -> dict[str, Any]:
    description = host.configure(config, _do_nothing)
    pictures = _images(config, plan)
    traffic = HostTraffic(
        host,
        description,
        dict.fromkeys(config.cameras, plan.rate_hz),
        lambda camera, number: pictures[camera][number % _PICTURES],
        config.stop_timeout_s,
    )
    traffic.start()
    findings = []
    watch = _Watch(host, config.standby)
    try:
        if not watch.wait_settled(traffic):
            findings.append("not all DNNs answered before the first fault")
        first = _resource_use()
        faults = Faults(plan.seed, flag, watch.serving)
        begin = time.monotonic()
        with time_bar(plan.seconds, "faults") as bar:
            while (elapsed := time.monotonic() - begin) < plan.seconds:
                bar.update(elapsed - bar.n)
                watch.sleep(min(faults.pause_s(*plan.every_s), plan.seconds - elapsed), bar.update)
                if time.monotonic() - begin < plan.seconds:
                    faults.inject(time.monotonic() - begin)
        faults.end()
        begin = time.monotonic()
        if not watch.wait_settled(traffic):
            findings.append(
                f"not recovered {_RECOVERY_S:g} s after the last fault: "
                + "; ".join(
                    f"{status.name}: {status.text}, standby {status.values.get('standby')}"
                    for status in host.statuses()
                )
            )
        recovery_s = time.monotonic() - begin
        last = _settled_resource_use(first)
    finally:
        hanging = traffic.stop()
    findings += traffic.discrepancies()
    findings += _growth(first, last)
    findings += [f"hangs: {name}" for name in hanging]
    return {
        "plan": asdict(plan),
        "device": description.device,
        "standby": config.standby,
        "fault_window_s": config.fault_window_s,
        "streams": {
            f"{dnn} on {camera}": {
                "offered": stream.offered,
                "published": stream.published,
                "dropped": {reason.value: count for reason, count in stream.dropped.items() if count},
            }
            for (dnn, camera), stream in traffic.streams().items()
        },
        "faults": {kind: sum(fault.kind == kind for fault in faults.injected) for kind in KINDS},
        "faults_of_serving": sum(fault.serving for fault in faults.injected),
        "restarts": watch.restarts,
        "disabled": len(traffic.seen.failures),
        "gap_ms": distribution(watch.gaps_ms) if watch.gaps_ms else {},
        "recovery_s": recovery_s,
        "engines_at_most": watch.max_engines,
        "held_before": asdict(first),
        "held_after": asdict(last),
        "findings": findings,
    }


class _Watch:
    """Monitors the host: serving processes, gaps, restarts."""

    def __init__(self, host: ProcessHost, standby: str) -> None:
        self._host = host
        self._standby = standby
        self._seen: set[tuple[str, object, object]] = set()
        self.gaps_ms: list[float] = []
        self.max_engines = 0

    @property
    def restarts(self) -> int:
        return len(self.gaps_ms)

    def serving(self) -> set[int]:
        """IDs of the processes that serve a group of DNNs."""
        pids = (status.values["pid"] for status in self._host.statuses())
        return {int(str(pid)) for pid in pids if pid != "none"}

    def sleep(self, seconds: float, progress: Callable[[float], object] = lambda seconds: None) -> None:
        """progress: called with the seconds since its last call."""
        last_s = time.monotonic()
        until = last_s + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._look()
            time.sleep(min(_SAMPLE_S, left_s))
            progress(time.monotonic() - last_s)
            last_s = time.monotonic()

    def wait_settled(self, traffic: HostTraffic) -> bool:
        """Wait until one process per device serves all its DNNs, the standbys are ready, and each DNN has produced a
        new result.
        """
        until = time.monotonic() + _RECOVERY_S
        wanted = "none (parameter standby)" if self._standby == "none" else f"{self._standby}, ready"
        counts = {dnn: traffic.results(dnn) for dnn in traffic.accounts.cameras_by_dnn}
        while time.monotonic() < until:
            self._look()
            statuses = self._host.statuses()
            # The process of a suspected DNN has no standby.
            settled = bool(statuses) and all(status.values.get("standby") == wanted for status in statuses)
            if settled and all(traffic.results(dnn) > count for dnn, count in counts.items()):
                return True
            time.sleep(_SAMPLE_S)
        return False

    def _look(self) -> None:
        self.max_engines = max(self.max_engines, len(engine_pids()))
        for status in self._host.statuses():
            values = status.values
            gap = values.get("gap (ms)", "ongoing")
            key = status.name, values["pid"], gap
            if gap != "ongoing" and key not in self._seen:
                self._seen.add(key)
                self.gaps_ms.append(float(str(gap)))


def _images(config: NodeConfig, plan: ChaosPlan) -> dict[str, list[npt.NDArray[np.uint8]]]:
    noise = np.random.default_rng(plan.seed)
    width, height = plan.size
    return {
        camera: [noise.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(_PICTURES)]
        for camera in config.cameras
    }


def _resource_use() -> ResourceUse:
    process = psutil.Process()
    return ResourceUse(
        process.memory_full_info().uss,
        process.num_fds(),
        threading.active_count(),
        len(engine_pids()),
        _shared_memory(),
    )


def _settled_resource_use(first: ResourceUse) -> ResourceUse:
    """Resource use once replaced processes have ended, or after the time limit."""
    until = time.monotonic() + _ENDING_S
    while _growth(first, last := _resource_use()) and time.monotonic() < until:
        time.sleep(_SAMPLE_S)
    return last


def _shared_memory() -> int:
    try:
        return sum(not belongs_to_ros(name) for name in os.listdir("/dev/shm"))
    except OSError:
        return 0  # no /dev/shm on this system


def _growth(first: ResourceUse, last: ResourceUse) -> list[str]:
    limits = {
        "memory_bytes": _GROWTH_BYTES,
        "files": _GROWTH_FILES,
        "threads": _GROWTH_THREADS,
        "engines": 0,
        "shared": 0,
    }
    return [
        f"{name}: {getattr(first, name)} before, {getattr(last, name)} after the faults"
        for name, limit in limits.items()
        if getattr(last, name) > getattr(first, name) + limit
    ]


def _do_nothing(progress: Progress) -> None:
    pass
