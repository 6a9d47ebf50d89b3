"""This package beside the plain processes of a user: the same networks, cameras, computer and time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from multi_dnn_ros.benchmark.board.search import RateSearch
from multi_dnn_ros.benchmark.paper.branches import SIZES
from multi_dnn_ros.benchmark.paper.measure import receive, start_process
from multi_dnn_ros.benchmark.paper.peers import PICTURES, Peer, Phase, Report, make_pictures, run_peer
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.schema import NodeConfig

CAMERAS = tuple(f"camera{number}" for number in range(3))
#: Rate at which latency and CPU are compared, and the range of the search for the highest one.
RATE_HZ = 30.0
_LOWEST_HZ, _HIGHEST_HZ = 1.0, 500.0
#: A rate is served if less than this share of the results is missing.
_DROP_LIMIT = 0.05
_READY_LIMIT_S, _EXTRA_S, _START_S = 1200.0, 60.0, 0.3

#: Runs one side at a rate for some seconds; returns results_hz, missing (share), p50_ms, p99_ms and cpu_cores.
Trial = Callable[[float, float], dict[str, float]]


def peer_config(config: NodeConfig, copies: int) -> NodeConfig:
    """The DNNs of `config`, `copies` of each, which all serve CAMERAS."""
    camera = next(iter(config.cameras.values()))
    dnns = {
        f"{name}{copy or ''}": dnn.model_copy(update={"cameras": list(CAMERAS)})
        for copy in range(copies)
        for name, dnn in config.dnns.items()
    }
    return config.model_copy(update={"cameras": {name: camera.model_copy() for name in CAMERAS}, "dnns": dnns})


def peers_of(config: NodeConfig) -> list[Peer]:
    """A plain process for each DNN. Raises UsageError for a network that is not torchvision's."""
    found = []
    for name, dnn in config.dnns.items():
        size = (dnn.input_width, dnn.input_height) if dnn.input_width else SIZES.get(dnn.model)
        if not dnn.model.startswith("torchvision:") or size is None:
            raise UsageError(f"dnn.{name}.model is {dnn.model}; --peers needs a network of torchvision, and its "
                             "input_width and input_height")  # fmt: skip
        found.append(Peer(dnn.model.partition(":")[2], size, dnn.num_classes or None))
    return found


def compare_with_peers(
    config: NodeConfig, size: tuple[int, int], seconds: float, repeats: int, folder: Path,
    save: Callable[[dict[str, Any]], None], say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Start all sides, then measure them in turn; returns the runs and their medians of each side.

    config: from peer_config(). size: (width, height) of the images. folder: for logs. A run is a trial at RATE_HZ and
    the trial at the highest served rate. Without rclpy the whole node is left out.
    """
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        sides = _start_sides(config, size, folder, stack, say)
        for number in range(repeats):
            for name, trial in sides.items():
                runs = figures.setdefault(name, {"runs": []})["runs"]
                runs.append(_measure(trial, seconds))
                figures[name]["summary"] = {
                    part: {key: statistics.median(run[part][key] for run in runs) for key in runs[0][part]}
                    for part in runs[0]
                }
            say(f"run {number + 1} of {repeats}")
            save(figures)
    return figures


def _start_sides(
    config: NodeConfig, size: tuple[int, int], folder: Path, stack: ExitStack, say: Callable[[str], None]
) -> dict[str, Trial]:
    peers = peers_of(config)
    say(f"starting {len(peers)} plain processes, and the same DNNs in this package")
    plain = [start_process(stack, run_peer, peer, config.device, len(CAMERAS), size) for peer in peers]
    ours = start_process(stack, run_engine, config, size)
    for connection, name in zip((*plain, ours), (*config.dnns, "this package"), strict=True):
        receive(connection, _READY_LIMIT_S, name)
    sides: dict[str, Trial] = {
        "plain processes": partial(_trial, plain, len(peers)),
        "engine, no ROS": partial(_trial, [ours], len(peers)),
    }
    if find_spec("rclpy") is not None:  # not on every computer with a GPU
        sides["whole node"] = _node_trial(config, size, folder, stack)
    return sides


def _trial(processes: Sequence[Connection], dnns: int, rate_hz: float, seconds: float) -> dict[str, float]:
    """A Trial of processes that take the frames by the clock. dnns: of all processes together."""
    begin_s = time.monotonic() + _START_S
    phase = Phase(rate_hz, begin_s, begin_s + seconds, len(CAMERAS))
    for connection in processes:
        connection.send(phase)
    reports: list[Report] = [receive(connection, seconds + _EXTRA_S, "a process") for connection in processes]
    latencies = [latency for report in reports for latency in report.latencies_ms]
    p50, p99 = np.percentile(latencies, (50, 99)).tolist() if latencies else (0.0, 0.0)
    return {
        "rate_hz": rate_hz, "results_hz": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99,
        "missing": max(0.0, 1.0 - len(latencies) / (phase.frames * dnns)),
        "cpu_cores": sum(report.cpu_s for report in reports) / (seconds + _START_S),
    }  # fmt: skip


def _node_trial(config: NodeConfig, size: tuple[int, int], folder: Path, stack: ExitStack) -> Trial:
    """A Trial of the whole node, with cameras that publish on loopback DDS."""
    from multi_dnn_ros.benchmark.board.measure import run_trial
    from multi_dnn_ros.benchmark.rig import CameraPlan, Rig

    cameras = [CameraPlan(name, size, "bgr8", RATE_HZ) for name in CAMERAS]
    rig = stack.enter_context(Rig(folder, config.model_copy(update={"diagnostics_period_s": 0.25}), cameras))
    rig.sample_s = 0.2

    def trial(rate_hz: float, seconds: float) -> dict[str, float]:
        found = run_trial(rig, rate_hz, seconds)
        latency = found["latency_ms"] or {"p50": 0.0, "p99": 0.0}
        figures = {key: found[key] for key in ("rate_hz", "results_hz", "cpu_cores")}
        return {**figures, "p50_ms": latency["p50"], "p99_ms": latency["p99"], "missing": found["drop_share"]}

    return trial


def run_engine(config: NodeConfig, size: tuple[int, int], connection: Connection) -> None:
    """This package without ROS, in the place of the peers' processes: what the node does between its subscriptions and
    its publishers, with an engine process.
    """
    from multi_dnn_ros.engine import Frame, Result
    from multi_dnn_ros.engine.reports import Callbacks
    from multi_dnn_ros.serving.camera_decoder import CameraDecoder
    from multi_dnn_ros.serving.host import Host
    from multi_dnn_ros.serving.ledger import DnnSettings, Ledger

    latencies_ms: list[float] = []

    def on_result(result: Result) -> None:
        latencies_ms.append((time.monotonic_ns() - result.frame.stamp_ns) / 1e6)

    def ignore(report: object) -> None:
        """Of drops and failures, which are missing results."""

    host, decoders = Host(), dict[str, CameraDecoder]()
    description = host.configure(config, lambda progress: None)
    dnns = {name: DnnSettings(dnn.cameras) for name, dnn in description.dnns.items()}
    ledger = Ledger(dnns, Callbacks(on_result, ignore, ignore), on_answered=lambda camera: decoders[camera].wake())
    decoders.update({name: CameraDecoder(name, host, ledger, ignore) for name in CAMERAS})
    host.start(ledger)
    for decoder in decoders.values():
        decoder.start()
    this = psutil.Process()

    def cpu_s() -> float:
        times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    pictures = make_pictures(len(CAMERAS), size)

    def decode(camera: int, number: int, allocate: Callable[[int, int], Any]) -> Any:
        image = allocate(size[1], size[0])
        np.copyto(image, pictures[camera, number % PICTURES])
        return image

    connection.send("ready")
    while True:
        phase: Phase = connection.recv()
        begin_cpu_s, seen = cpu_s(), np.full(len(CAMERAS), -1)
        latencies_ms.clear()
        while phase.wait(seen):
            newest = phase.newest(time.monotonic())
            for camera in np.flatnonzero(newest > seen).tolist():
                number = int(newest[camera])
                frame = Frame(CAMERAS[camera], round(phase.taken_s(camera, number) * 1e9))
                decoders[frame.camera].arrived(frame, partial(decode, camera, number))
            seen = newest
        ledger.wait_idle(_EXTRA_S / 2)
        connection.send(Report(list(latencies_ms), cpu_s() - begin_cpu_s))


def _measure(trial: Trial, seconds: float) -> dict[str, dict[str, float]]:
    at_rate = best = trial(RATE_HZ, 2.0 * seconds)
    search = RateSearch(_LOWEST_HZ, _HIGHEST_HZ)
    search.add(RATE_HZ, at_rate["missing"] < _DROP_LIMIT)
    while (rate_hz := search.next_hz()) is not None:
        found = trial(rate_hz, seconds)
        search.add(rate_hz, found["missing"] < _DROP_LIMIT)
        if search.best_hz == rate_hz:
            best = found
    return {"at_rate": at_rate, "saturated": best}
