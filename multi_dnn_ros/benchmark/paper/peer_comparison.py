"""This package beside the plain processes of a user: the same networks, cameras, computer and time."""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from multi_dnn_ros.benchmark.board.search import RateSearch
from multi_dnn_ros.benchmark.paper.branch_networks import SIZES
from multi_dnn_ros.benchmark.paper.peers import Peer, run_peer
from multi_dnn_ros.benchmark.paper.shared_cameras import SLOTS, CameraFrames, Phase, Report, run_camera
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.common.reporting import table, three_digits
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.settings.schema import NodeConfig

#: Rate at which latency and CPU are compared, and the range of the search for the highest one.
RATE_HZ = 30.0
_LOWEST_HZ, _HIGHEST_HZ = 1.0, 500.0
#: A rate is served if less than this share of the results is missing.
_DROP_LIMIT = 0.05
_READY_LIMIT_S, _EXTRA_S, _START_S = 1200.0, 60.0, 0.3


@dataclass(frozen=True)
class PeerPlan:
    """config: the DNNs, of torchvision's networks. copies: processes, and DNNs of ours, for each of them. size: (width,
    height) of the images. seconds: of each trial.
    """

    config: NodeConfig
    device: str
    cameras: int = 3
    copies: int = 1
    size: tuple[int, int] = (1280, 720)
    seconds: float = 5.0
    repeats: int = 3

    @property
    def ours(self) -> NodeConfig:
        """The configuration of this package: the cameras and copies of the plan."""
        names = [f"camera{number}" for number in range(self.cameras)]
        cameras = {name: next(iter(self.config.cameras.values())).model_copy() for name in names}
        dnns = {
            f"{name}{copy or ''}": dnn.model_copy(update={"cameras": names})
            for copy in range(self.copies)
            for name, dnn in self.config.dnns.items()
        }
        return self.config.model_copy(update={"cameras": cameras, "dnns": dnns, "device": self.device})

    @property
    def peers(self) -> list[Peer]:
        """A process for each DNN. Raises UsageError for a network that is not torchvision's."""
        found = []
        for name, dnn in self.config.dnns.items():
            size = (dnn.input_width, dnn.input_height) if dnn.input_width else SIZES.get(dnn.model)
            if not dnn.model.startswith("torchvision:") or size is None:
                raise UsageError(f"dnn.{name}.model is {dnn.model}; --peers needs a network of torchvision, and its "
                                 "input_width and input_height")  # fmt: skip
            found.append(Peer(dnn.model.partition(":")[2], size, dnn.num_classes or None))
        return found * self.copies


class Side(Protocol):
    """One way to run the DNNs."""

    def trial(self, rate_hz: float, seconds: float) -> dict[str, float]:
        """Offer images at a rate; returns results_hz, missing (share), p50_ms, p99_ms and cpu_cores."""
        ...


class _Process:
    """A spawned process with a connection; `target` gets `arguments` and the connection."""

    def __init__(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(target, *arguments, theirs), name=name)
        with block_in_children(signal.SIGINT):
            self._process.start()
        theirs.close()

    def receive(self, timeout_s: float) -> Any:
        try:
            if self.connection.poll(timeout_s):
                return self.connection.recv()
        except (EOFError, OSError):
            self._process.join(_EXTRA_S)
            raise CommandError(f"{self._process.name} ended with exit code {self._process.exitcode}") from None
        raise CommandError(f"{self._process.name} did not answer in {timeout_s:g} s")

    def close(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()


def _run(target: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    target(*arguments)


@dataclass(frozen=True)
class _Readers:
    """A side whose processes read the frames of `cameras` in shared memory. numbers: of the processes."""

    processes: Sequence[_Process]
    cameras: Sequence[_Process]
    numbers: tuple[int, ...]
    dnns: int

    def trial(self, rate_hz: float, seconds: float) -> dict[str, float]:
        """See Side."""
        begin_s = time.monotonic() + _START_S
        for process in (*self.processes, *self.cameras):
            process.connection.send(Phase(rate_hz, begin_s, begin_s + seconds, self.numbers))
        sent = sum(process.receive(seconds + _EXTRA_S) for process in self.cameras)
        reports: list[Report] = [process.receive(seconds + _EXTRA_S) for process in self.processes]
        latencies = [latency for report in reports for latency in report.latencies_ms]
        p50, p99 = np.percentile(latencies, (50, 99)).tolist() if latencies else (0.0, 0.0)
        return {
            "rate_hz": rate_hz, "results_hz": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99,
            "missing": max(0.0, 1.0 - len(latencies) / (sent * self.dnns)),
            "cpu_cores": sum(report.cpu_s for report in reports) / (seconds + _START_S),
        }  # fmt: skip


class _Node:
    """The whole node, with cameras that publish on loopback DDS."""

    def __init__(self, plan: PeerPlan, folder: Path, stack: ExitStack) -> None:
        from multi_dnn_ros.benchmark.cameras import CameraPlan
        from multi_dnn_ros.benchmark.rig import Rig

        cameras = [CameraPlan(name, plan.size, "bgr8", RATE_HZ) for name in plan.ours.cameras]
        config = plan.ours.model_copy(update={"diagnostics_period_s": 0.25})
        self._rig = stack.enter_context(Rig(folder, config, cameras))
        self._rig.sample_s = 0.2

    def trial(self, rate_hz: float, seconds: float) -> dict[str, float]:
        """See Side."""
        from multi_dnn_ros.benchmark.board.measure import run_trial

        found = run_trial(self._rig, rate_hz, seconds)
        latency = found.latency_ms or {"p50": 0.0, "p99": 0.0}
        return {
            "rate_hz": rate_hz, "results_hz": found.results_hz, "missing": found.drop_share, "p50_ms": latency["p50"],
            "p99_ms": latency["p99"], "cpu_cores": found.cpu_cores,
        }  # fmt: skip


def run_engine(config: NodeConfig, frames: CameraFrames, wake: Any, connection: Connection) -> None:
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

    host = Host()
    description = host.configure(config, lambda progress: None)
    ledger = Ledger(
        {name: DnnSettings(dnn.cameras) for name, dnn in description.dnns.items()},
        Callbacks(on_result, ignore, ignore),
        on_answered=lambda camera: decoders[camera].wake(),
    )
    decoders = {name: CameraDecoder(name, host, ledger, ignore) for name in config.cameras}
    host.start(ledger)
    for decoder in decoders.values():
        decoder.start()
    this = psutil.Process()

    def cpu_s() -> float:
        times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def decode(camera: int, slot: int, allocate: Callable[[int, int], Any]) -> Any:
        image = allocate(*frames.images.shape[2:4])
        np.copyto(image, frames.images[camera, slot])
        return image

    connection.send("ready")
    while True:
        phase: Phase = connection.recv()
        begin_cpu_s, seen = cpu_s(), frames.numbers.copy()
        latencies_ms.clear()
        while (left_s := phase.end_s - time.monotonic()) > 0.0:
            wake.acquire(timeout=left_s)
            numbers = frames.numbers.copy()
            for camera in np.flatnonzero(numbers > seen):
                slot = int(numbers[camera] % SLOTS)
                frame = Frame(f"camera{camera}", int(frames.stamps_ns[camera, slot]))
                decoders[frame.camera].arrived(frame, partial(decode, int(camera), slot))
            seen = numbers
        ledger.wait_idle(_EXTRA_S)
        connection.send(Report(list(latencies_ms), cpu_s() - begin_cpu_s))


def compare_with_peers(
    plan: PeerPlan, folder: Path, save: Callable[[dict[str, Any]], None], say: Callable[[str], None]
) -> dict[str, Any]:
    """Start all sides, then measure them in turn; returns the runs and the summary of each. folder: for logs.

    A run is a trial at RATE_HZ and the trial at the highest served rate. Without rclpy the whole node is left out.
    """
    peers, sides = plan.peers, dict[str, Side]()
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        frames = CameraFrames(plan.cameras, plan.size)
        stack.callback(frames.memory.unlink)
        context = multiprocessing.get_context("spawn")
        wakes = [context.Semaphore(0) for _ in range(len(peers) + 1)]

        def start(name: str, *arguments: Any) -> _Process:
            process = _Process(name, *arguments)
            stack.callback(process.close)
            return process

        cameras = [start(f"camera {number}", run_camera, number, frames, wakes) for number in range(plan.cameras)]
        say(f"starting {len(peers)} plain processes, and the same DNNs in this package")
        plain = [
            start(f"the process of {peer.network}", run_peer, peer, plan.device, frames, wake)
            for peer, wake in zip(peers, wakes, strict=False)
        ]
        ours = start("the process of this package", run_engine, plan.ours, frames, wakes[-1])
        for process in (*plain, ours):
            process.receive(_READY_LIMIT_S)
        sides["plain processes"] = _Readers(plain, cameras, tuple(range(len(peers))), len(peers))
        sides["engine, no ROS"] = _Readers([ours], cameras, (len(peers),), len(peers))
        if find_spec("rclpy") is not None:
            sides["whole node"] = _Node(plan, folder, stack)
        else:
            say("rclpy is not installed: the whole node is left out")
        figures.update({name: {"runs": []} for name in sides})
        for number in range(plan.repeats):
            for name, side in sides.items():
                figures[name]["runs"].append(_measure(side, plan.seconds))
                figures[name]["summary"] = _summary(figures[name]["runs"])
                save(figures)
            say(f"run {number + 1} of {plan.repeats}\n{peers_table(figures)}")
    return figures


def _measure(side: Side, seconds: float) -> dict[str, dict[str, float]]:
    at_rate = side.trial(RATE_HZ, 2.0 * seconds)
    search = RateSearch(_LOWEST_HZ, _HIGHEST_HZ)
    best = at_rate
    search.add(RATE_HZ, at_rate["missing"] < _DROP_LIMIT)
    while (rate_hz := search.next_hz()) is not None:
        found = side.trial(rate_hz, seconds)
        search.add(rate_hz, found["missing"] < _DROP_LIMIT)
        if search.best_hz == rate_hz:
            best = found
    return {"at_rate": at_rate, "saturated": best}


def _summary(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        part: {name: statistics.median(run[part][name] for run in runs) for name in runs[0][part]} for part in runs[0]
    }


def peers_table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Medians over the runs so far, a row per side."""
    names = ("results_hz", "missing", "p50_ms", "p99_ms", "cpu_cores")
    rows = [
        [side, *(three_digits(it["summary"][part][name]) for part in ("saturated", "at_rate") for name in names)]
        for side, it in figures.items()
        if "summary" in it
    ]
    titles = ("results/s", "missing", "p50, ms", "p99, ms", "CPU cores")
    return table(
        ["", *(f"{part}{title}" for part in ("highest rate: ", f"{RATE_HZ:g} Hz: ") for title in titles)], rows
    )
