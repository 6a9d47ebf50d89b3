"""CPU cost of a result in the node, its engine processes and the cameras, by thread group."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.host_cases import COUNTER, THREE_NODES, HostCase, config_of
from multi_dnn_ros.benchmark.load import start_cameras
from multi_dnn_ros.benchmark.node_config import streams_of
from multi_dnn_ros.benchmark.plain_export import export_builtin
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.thread_usage import ProcessUsage, Usage, read_process, used_between
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.settings.schema import NodeConfig

_WARM_UP_S = 3.0
_PEERS = "multi_dnn_ros.benchmark.peers"
_MIDDLEWARE = r"recv|tev|dq\.|gc$|xmit|lease|dds\."
#: By kind of process: thread groups and patterns of their threads' names, of which the first match counts. The main
#: thread has the name "".
_GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    # The main thread spins the executor: it takes images, and the timer of the diagnostics runs there.
    "node": (("receive", r"$"), ("decode", "decode-"), ("publish", "reader"), ("diagnostics", "diagnostics"),
             ("middleware", _MIDDLEWARE)),
    "engine": (("engine", r"dnn-|worker-|images"), ("exchange", "receive"), ("report", "report|heartbeat")),
    "camera": (("send", r"$"), ("middleware", _MIDDLEWARE)),
    "peer": (("main", r"$"), ("middleware", _MIDDLEWARE)),
}  # fmt: skip
OTHER = "other"
_COUNTED = re.compile(r"^counted (\{.*\})$", re.M)


def measure_host(
    cases: Sequence[HostCase],
    folder: Path,
    seconds: float,
    device: str | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda figures: None,
) -> dict[str, Any]:
    """Measure every case for `seconds`, one after another, each with processes of its own.

    device: replaces the presets' one. keep: called after each case with the figures so far. Repeats of a case become
    one entry of "cases": medians of the figures, and percentiles of all latencies together. Raises CommandError if a
    process ends or does not serve, and before the first case UsageError for parameters that do not fit a case.
    """
    configs = {preset: config_of(preset, device, folder) for preset in dict.fromkeys(case.preset for case in cases)}
    for case in cases:
        streams_of(configs[case.preset], [plan.name for plan in case.plans])
    figures: dict[str, Any] = {}
    runs: dict[str, list[dict[str, Any]]] = {}
    latencies: dict[str, list[float]] = {}
    described = {}
    for number, case in enumerate(cases, start=1):
        progress(f"{number} of {len(cases)}: {case.name}")
        measured, found = _measure(case, configs[case.preset], folder / f"{number}", seconds, seed)
        runs.setdefault(case.name, []).append(measured)
        latencies.setdefault(case.name, []).extend(found)
        described[case.name] = case.described()
        figures = {
            "seconds": seconds,
            "runtime": get_rmw_implementation_identifier(),
            "cases": {
                name: {
                    **described[name],
                    **_median(repeats),
                    "latency_ms": distribution(latencies[name]) if latencies[name] else None,
                    "runs": len(repeats),
                }
                for name, repeats in runs.items()
            },
        }
        keep(figures)
    return figures


def _measure(
    case: HostCase, config: NodeConfig, folder: Path, seconds: float, seed: int
) -> tuple[dict[str, Any], list[float]]:
    rigs: Mapping[str, Callable[..., Rig]] = {COUNTER: _CounterRig, THREE_NODES: _ThreeNodesRig}
    with rigs.get(case.preset, Rig)(folder, config, case.plans, seed) as rig:
        start_cameras(rig)
        rig.sample_s = math.inf  # of no use here, and a core is busy for tens of milliseconds
        rig.spin(_WARM_UP_S)
        first, begin_s, begin_counts = _read(rig), rig.now(), _received(rig)
        rig.spin(seconds)
        last, end_s, end_counts = _read(rig), rig.now(), _received(rig)
        memory = {name: _memory_bytes(usage.pid) for name, usage in last.items()}
        stages = _stages(rig)
        if case.preset not in rigs:
            for plan in case.plans:
                rig.stop_camera(plan.name)
            rig.settle()
        accounts = {f"{dnn} on {camera}": counts for (dnn, camera), counts in rig.accounts().items()}
        used_device = rig.value("node", "device") or "cpu"
        logs = [server.log for server in rig.servers]
    elapsed_s = end_s - begin_s
    results = [each for receipts in rig.receipts.values() for each in receipts.between(begin_s, end_s)]
    sent_hz = case.rate_hz * case.cameras
    received_hz = _rate_hz(begin_counts, end_counts) if case.preset not in rigs else _counted_hz(logs)
    frames = (received_hz or sent_hz) * elapsed_s
    streams = len(rig.switched_on) / case.cameras
    processes = {
        name: _process_figures(name, first[name], last[name], elapsed_s, frames, len(results), memory[name])
        for name in last
        if name in first
    }
    cpu_ms = sum(process["cpu_ms"] for name, process in processes.items() if not name.startswith("camera"))
    return {
        "device": used_device,
        "elapsed_s": elapsed_s,
        "offered_results_hz": sent_hz * streams,
        "results_hz": len(results) / elapsed_s,
        "frames_sent_hz": sent_hz,
        "frames_received_hz": received_hz,
        "cpu_ms_per_result": cpu_ms / len(results) if results else None,
        "cpu_ms_per_frame": cpu_ms / frames,
        "processes": processes,
        "stages_p50_ms": stages,
        "accounts": accounts,
    }, results


def _process_figures(
    name: str, first: ProcessUsage, last: ProcessUsage, elapsed_s: float, frames: float, results: int, memory: int
) -> dict[str, Any]:
    kind = re.split(r"[ _]", name)[0]

    def group(number: int, thread: str) -> str:
        name = "" if number == 0 else thread
        return next((group for group, pattern in _GROUPS[kind] if re.match(pattern, name)), OTHER)

    used = used_between(first, last, group)
    threads = Counter(group(key.number - last.pid, name) for key, name in last.names.items())
    total = sum(used.values(), Usage())
    return {
        **_usage_figures(total, elapsed_s, frames, results),
        "memory_bytes": memory,
        "threads": len(last.threads),
        "groups": {
            name: {**_usage_figures(usage, elapsed_s, frames, results), "threads": threads[name]}
            for name, usage in sorted(used.items())
        },
    }


def _usage_figures(used: Usage, elapsed_s: float, frames: float, results: int) -> dict[str, float | None]:
    return {
        "cpu_ms": used.cpu_ns / 1e6,
        "cpu_ms_per_frame": used.cpu_ns / 1e6 / frames,
        "cpu_ms_per_result": used.cpu_ns / 1e6 / results if results else None,
        "waited_for_core_ms_per_frame": used.waited_ns / 1e6 / frames,
        "page_faults_per_frame": used.faults / frames,
        "context_switches_hz": used.switches / elapsed_s,
        "preemptions_hz": used.preemptions / elapsed_s,
    }


def _read(rig: Rig) -> dict[str, ProcessUsage]:
    """Usage of each process by name: node, engine 1, camera camera0."""
    found = {}
    for server in rig.servers:
        with suppress(psutil.NoSuchProcess):
            found[f"peer {server.name}" if isinstance(rig, _PeerRig) else server.name] = read_process(server.pid)
            children = sorted(psutil.Process(server.pid).children(recursive=True), key=lambda child: child.pid)
            for number, child in enumerate(children, start=1):
                with suppress(FileNotFoundError, ProcessLookupError):
                    found[f"engine {number}"] = read_process(child.pid)
    for name, camera in rig.cameras.items():
        found[f"camera {name}"] = read_process(camera.pid)
    return found


def _memory_bytes(pid: int) -> int:
    """Proportional set size, so that memory shared by several processes counts once in their sum; 0 if unknown."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return 0


def _received(rig: Rig) -> tuple[float, int]:
    """When the newest report was made, and how many images the node had received by then."""
    counts = (rig.value(f"camera {name}", "received") for name in rig.plans)
    return rig.reported_s, sum(int(count or 0) for count in counts)


def _rate_hz(begin: tuple[float, int], end: tuple[float, int]) -> float | None:
    return (end[1] - begin[1]) / (end[0] - begin[0]) if end[0] > begin[0] else None


def _counted_hz(logs: Sequence[Path]) -> float | None:
    """Images per second that a peer received, as it wrote into its log at its end; mean of the peers."""
    found = [_COUNTED.search(log.read_text(encoding="utf-8", errors="replace")) for log in logs]
    rates_hz = [float(json.loads(match[1])["hz"]) for match in found if match]
    return float(np.mean(rates_hz)) if rates_hz else None


def _stages(rig: Rig) -> dict[str, dict[str, float]]:
    """Medians of the stages of each stream, wall time in ms, as the node reports them."""
    suffix = " p50 (ms)"
    return {
        f"{dnn} on {camera}": {
            key.removesuffix(suffix): float(value)
            for key, value in rig.statuses.get(f"{dnn} on {camera}", {}).items()
            if key.endswith(suffix)
        }
        for dnn, camera in rig.streams
    }


def _median(runs: Sequence[Any]) -> Any:
    """Figures of the runs' structure with the median of each number; other values are those of the first run."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: _median([run[key] for run in runs if key in run]) for key in first}
    numbers = [run for run in runs if isinstance(run, (int, float))]
    return float(np.median(numbers)) if len(numbers) == len(runs) else first


class _PeerRig(Rig):
    """A rig with another program in place of the node."""

    def serves(self) -> bool:
        return all(self._observer.count_subscribers(plan.topic) for plan in self.plans.values())


class _CounterRig(_PeerRig):
    """A subscriber that only counts the images of all cameras."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.streams = []

    def start_servers(self, parameters: Path) -> None:
        topics = [argument for plan in self.plans.values() for argument in ("--topic", plan.topic)]
        kind = "raw" if next(iter(self.plans.values())).encoding else "compressed"
        self.node = self.start_server(COUNTER, [*topics, "--transport", kind], f"{_PEERS}.counter")


class _ThreeNodesRig(_PeerRig):
    """One node per DNN, each in a process of its own."""

    def start_servers(self, parameters: Path) -> None:
        for name in self.config.dnns:
            self.start_server(name, self._arguments(name, self.config), f"{_PEERS}.detector_node")
        self.node = self.servers[0]

    def serves(self) -> bool:
        wanted = len(self.config.dnns)
        return all(self._observer.count_subscribers(plan.topic) >= wanted for plan in self.plans.values())

    def _arguments(self, name: str, config: NodeConfig) -> list[str]:
        network = export_builtin(config.dnns[name], self.folder / f"{name}.onnx")
        plans = list(self.plans.values())
        cameras = [argument for plan in plans for argument in ("--camera", f"{plan.name}={plan.topic}")]
        kind = "raw" if plans[0].encoding else "compressed"
        return ["--name", name, "--network", str(network), "--transport", kind, *cameras]
