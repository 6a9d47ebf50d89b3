"""A node and cameras as processes on loopback DDS, with an observer in this process: the set-up of long runs."""

from __future__ import annotations

import os
import re
import signal
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import psutil
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from tqdm import tqdm

from multi_dnn_ros.benchmark import cameras as camera_process
from multi_dnn_ros.benchmark.cameras import CameraPlan, write_messages
from multi_dnn_ros.benchmark.observation import NodeSample, ProcessTree, Receipts, gpu_busy_share
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.processes import Child, Interrupts, loopback_environment, reserved_domain
from multi_dnn_ros.common.reporting import nvidia_smi_id
from multi_dnn_ros.ros.board.monitor import BoardMonitor
from multi_dnn_ros.ros.message_types import message_class
from multi_dnn_ros.ros.middleware import configure
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind

NODE = "/multi_dnn"
_START_LIMIT_S = 300.0
#: DDS matches both sides independently: a publisher may discover its readers some milliseconds later.
_SETTLE_S = 1.0
_ERROR = 2  # as in DiagnosticStatus
#: Results per stream that are queued while the rig does something else; stopping eight cameras takes some seconds.
_QUEUE_DEPTH = 1000
#: CDR encapsulation and the header's stamp, the first field of every message we publish.
_STAMP = struct.Struct("<4xiI")
_REASON = re.compile(r"^dropped: (\w+)$")
#: An entry of the value `results` in the node's status: `<dnn> (<kind>)` or `<dnn>/<output> (<kind>)`.
_RESULT = re.compile(r"(\w+)(/\w+)? \(([^)]+)\)")

Stream = tuple[str, str]  # DNN, camera


class ProcessEnded(CommandError):
    """A process of a rig has ended before the rig stopped it; the message has its name, exit code and log."""


class Rig:
    """Context manager that starts a node serving `cameras` with the DNNs of `config`. Cameras are started individually.

    folder: for logs and the parameter file. Everything runs in a
    reserved ROS domain on loopback. A DNN serves those of `cameras` that it serves in `config`; raises UsageError if a
    DNN is left without a camera, or a camera without a DNN. If a DNN has several results, the first is observed.
    `receipts`, `samples` (one per `sample_s`) and `statuses` (latest diagnostics by name) are filled while :meth:`spin`
    runs. problems: sensors that fail. :meth:`spin`, :meth:`until` and :meth:`settle` raise ProcessEnded once a process
    has ended that this class has neither stopped nor killed.
    """

    def __init__(self, folder: Path, config: NodeConfig, cameras: Sequence[CameraPlan], seed: int = 0) -> None:
        self.folder = folder
        self.config = config.model_copy(update={"cameras": {plan.name: plan.config for plan in cameras}})
        self.plans = {plan.name: plan for plan in cameras}
        self.streams = streams_of(config, list(self.plans))
        served = {name: [camera for dnn, camera in self.streams if dnn == name] for name in config.dnns}
        dnns = {name: dnn.model_copy(update={"cameras": served[name]}) for name, dnn in config.dnns.items()}
        self.config = self.config.model_copy(update={"dnns": dnns})
        self.receipts: dict[Stream, Receipts] = {}
        self.samples: list[NodeSample] = []
        self.statuses: dict[str, Any] = {}
        self.reports = 0
        self.reported_s = 0.0  # time of the latest report, system clock
        self.cameras: dict[str, Child] = {}
        self.sample_s = 1.0
        self.node: Child
        self.logs: list[Path] = []  # of all processes that were started
        self.problems: list[str] = []
        self._seed = seed
        self._stack = ExitStack()
        self._interrupts = Interrupts()
        self._environment: Mapping[str, str] = {}
        self._results: Mapping[str, tuple[str, ResultKind]] = {}  # by DNN, once the node is active
        self._started = 0
        self._sampling: Future[None] | None = None
        self._next_sample_s = 0.0
        self._gpu = ""  # nvidia-smi's name, once the node is active

    def __enter__(self) -> Rig:
        self._stack.enter_context(self._interrupts)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._images = Path(self._stack.enter_context(TemporaryDirectory(prefix="multi_dnn_images_")))
        parameters = self.folder / "parameters.yaml"
        parameters.write_text(
            yaml.safe_dump({"/**": {"ros__parameters": flat_parameters(self.config)}}), encoding="utf-8"
        )
        domain = self._stack.enter_context(reserved_domain())
        self._environment = loopback_environment(domain)
        os.environ.update(self._environment)
        configure()
        rclpy.init(args=[], domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        self._stack.callback(rclpy.try_shutdown)
        self._observer = rclpy.create_node("rig")
        self._stack.callback(self._observer.destroy_node)
        self._executor = SingleThreadedExecutor()
        self._stack.callback(self._executor.shutdown)
        self._executor.add_node(self._observer)
        self._subscriptions = [
            self._observer.create_subscription(
                DiagnosticArray, "/diagnostics", self._on_diagnostics, QoSProfile(depth=50), raw=True
            )
        ]
        with self._interrupts.deferred():
            child = Child("node", ["run", "--params-file", str(parameters)], self._log("node"), self._environment)
            self.node = self._stack.enter_context(child)
        self.processes = ProcessTree(self.node.pid)
        self._monitor = BoardMonitor(self.problems.append, period_s=1.0)
        self._stack.callback(self._monitor.close)
        # In a thread: the kernel needs over 10 ms to add up the memory of an engine process of 650 MB.
        self._sampler = self._stack.enter_context(ThreadPoolExecutor(1, "samples"))
        for plan in self.plans.values():  # the node is being configured meanwhile
            write_messages(self._images / plan.name, plan, self._seed)
        if not self.until(self.serves, _START_LIMIT_S):
            raise CommandError(f"the node was not active after {_START_LIMIT_S:g} s; see {self.node.log}")
        # Only now: the kind of a result, and with it the topic, may be determined by the model.
        self._results = reported_results(self.value("node", "results") or "")
        number = (self.value("node", "device") or "").partition("cuda:")[2]
        if number.isdecimal():
            self._gpu = nvidia_smi_id(int(number))
        results = [self._listen(*stream) for stream in self.streams]
        self._subscriptions += results
        topics = [subscription.topic_name for subscription in results]
        if not self.until(lambda: all(self._observer.count_publishers(topic) for topic in topics), 30.0):
            raise CommandError(f"not every result topic of the node is on the graph after 30 s; see {self.node.log}")
        self.spin(_SETTLE_S)

    def serves(self) -> bool:
        """Whether the node is active. Raises CommandError if configuring failed: the node then stays unconfigured."""
        if self.level("node") == _ERROR and self.value("node", "state") == "unconfigured":
            raise CommandError(f"the node was not configured: {self.value('node', 'message')}")
        return self.value("node", "state") == "active"

    def start_camera(self, name: str, rate_hz: float | None = None) -> None:
        """Start or restart the process of a camera; a running one is stopped first."""
        self.stop_camera(name)
        plan = self.plans[name]
        self._started += 1
        arguments = camera_process.arguments(self._images / name, plan, rate_hz or plan.rate_hz)
        log = self._log(f"camera_{name}_{self._started}")
        with self._interrupts.deferred():
            child = Child(f"camera {name}", arguments, log, self._environment, camera_process.__name__)
            self.cameras[name] = self._stack.enter_context(child)

    def start_cameras(self) -> None:
        """Start all cameras, and wait until every DNN that is switched on has produced a result for each."""
        for name in self.plans:
            self.start_camera(name)
        expected = self.switched_on
        if not self.until(lambda: all(map(len, expected.values())), 60.0):
            silent = ", ".join(f"{dnn} on {camera}" for (dnn, camera), found in expected.items() if not len(found))
            raise CommandError(f"no results of {silent} after 60 s; see {self.folder}")

    def stop_camera(self, name: str) -> None:
        """Stop the process of a camera, if it is running."""
        if name in self.cameras:
            self.cameras.pop(name).stop()

    def kill_camera(self, name: str) -> None:
        """Kill the process of a camera with SIGKILL."""
        child = self.cameras.pop(name)
        child.send(signal.SIGKILL)
        child.stop()

    def spin(self, seconds: float, progress: Callable[[float], object] = lambda seconds: None) -> None:
        """Observe for `seconds`. progress: called with the seconds since its last call."""
        end, last_s = time.monotonic() + seconds, time.monotonic()
        while (now := time.monotonic()) < end:
            self._once(min(0.1, end - now))
            progress(time.monotonic() - last_s)
            last_s = time.monotonic()

    def until(self, condition: Callable[[], object], limit_s: float) -> bool:
        """Observe until the condition holds; False on timeout."""
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                return False
            self._once(0.1)
        return True

    def now(self) -> float:
        """Seconds on the clock of receipts and samples."""
        return time.monotonic()

    def settle(self, limit_s: float = 20.0) -> None:
        """Observe until two consecutive reports, both made from now on, show no frame in progress."""
        quiet, seen, begin_s = 0, self.reports, time.time()

        def settled() -> bool:
            nonlocal quiet, seen
            if self.reports > seen and self.reported_s >= begin_s:  # older reports may still be in our queue
                pending = sum(accounts["pending"] for accounts in self.accounts().values())
                quiet, seen = (quiet + 1 if pending == 0 else 0), self.reports
            return quiet >= 2

        if not self.until(settled, limit_s):
            raise CommandError(f"the node still has frames in progress {limit_s:g} s after the last one was sent")
        # Results may still be in our queues; completeness is checked by the accounts.
        self.until(
            lambda: all(
                counts["published"] == len(self.receipts[stream]) for stream, counts in self.accounts().items()
            ),
            5.0,
        )

    def value(self, status: str, key: str) -> str | None:
        """A value of the latest diagnostics, for a status such as `node`, `camera front`, `lane on front`."""
        found: str | None = self.statuses.get(status, {}).get(key)
        return found

    def level(self, status: str) -> int:
        """OK 0, WARN 1, ERROR 2, STALE 3; -1 before the first report."""
        return int(self.statuses.get(status, {}).get("level", -1))

    def accounts(self) -> dict[Stream, dict[str, Any]]:
        """The counts of every stream in the latest report: offered, published, pending and dropped (by reason, without
        zeros). received: images that the camera's subscription received. observed: results that arrived here.
        """
        accounts = {}
        for dnn, camera in self.streams:
            values = self.statuses.get(f"{dnn} on {camera}", {})
            dropped = {m[1]: int(v) for k, v in values.items() if (m := _REASON.match(k)) and int(v)}
            counts = {key: int(values.get(key, 0)) for key in ("offered", "published", "pending")}
            received = int(self.value(f"camera {camera}", "received") or 0)
            observed = len(self.receipts.get((dnn, camera), ()))
            accounts[dnn, camera] = {**counts, "dropped": dropped, "received": received, "observed": observed}
        return accounts

    @property
    def switched_on(self) -> dict[Stream, Receipts]:
        """`receipts` of the DNNs whose parameter `enable` is true; the others have no results."""
        return {stream: receipts for stream, receipts in self.receipts.items() if self.config.dnns[stream[0]].enable}

    @property
    def observer(self) -> Any:
        """The rclpy node of this process. Its entities are served while :meth:`spin` and :meth:`until` run."""
        return self._observer

    def result_topic(self, dnn: str, camera: str) -> tuple[str, str]:
        """Name and message type of the topic with the results of a stream, once the node is active; of several results,
        the first one's.
        """
        name, kind = self._results[dnn]
        topic = next((topic for topic in kind.topics if not topic.picture), kind.topics[0])
        return f"{NODE}/{camera}/{name}/{topic.name}", topic.msgtype

    # -- internal

    def _log(self, name: str) -> Path:
        """The log of a process that is about to start. `folder` may have logs of earlier runs."""
        self.logs.append(self.folder / f"{name}.log")
        return self.logs[-1]

    def _sample(self) -> None:
        gpu_bytes = int(self.value("node", "engine processes GPU reserved (bytes)") or 0)
        with suppress(psutil.NoSuchProcess):  # the node has just ended
            self.samples.append(
                self.processes.sample(
                    gpu_bytes=gpu_bytes, gpu_share=gpu_busy_share(self._gpu), sensors=self._monitor.latest()
                )
            )

    def _once(self, timeout_s: float) -> None:
        self._executor.spin_once(timeout_sec=timeout_s)
        for child in (self.node, *self.cameras.values()):
            if child.exit_code() is not None:
                raise ProcessEnded(
                    f"the {child.name} process ended with exit code {child.exit_code()}; see {child.log}"
                )
        if time.monotonic() >= self._next_sample_s and (self._sampling is None or self._sampling.done()):
            if self._sampling is not None:
                self._sampling.result()
            self._next_sample_s = time.monotonic() + self.sample_s
            self._sampling = self._sampler.submit(self._sample)

    def _listen(self, dnn: str, camera: str) -> Any:
        receipts = self.receipts.setdefault((dnn, camera), Receipts())
        name, kind = self.result_topic(dnn, camera)

        def receive(data: bytes) -> None:
            seconds, nanoseconds = _STAMP.unpack_from(data)
            age_ns = self._observer.get_clock().now().nanoseconds - (seconds * 1_000_000_000 + nanoseconds)
            receipts.add(time.monotonic(), age_ns / 1e6)

        return self._observer.create_subscription(
            message_class(kind), name, receive, QoSProfile(depth=_QUEUE_DEPTH), raw=True
        )

    def _on_diagnostics(self, data: bytes) -> None:
        message: Any = deserialize_message(data, DiagnosticArray)
        for status in message.status:
            name = status.name.partition(": ")[2]
            level = status.level[0] if isinstance(status.level, bytes) else int(status.level)
            values = {item.key: item.value for item in status.values}
            self.statuses[name] = {**values, "level": level, "message": status.message}
        self.reports += 1
        self.reported_s = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9


def streams_of(config: NodeConfig, cameras: Sequence[str]) -> list[Stream]:
    """Which DNN serves which of `cameras`, according to `config`.

    Raises UsageError for a DNN without cameras, and for a camera without DNNs that are switched on.
    """
    streams = []
    for name, dnn in config.dnns.items():
        served = [camera for camera in cameras if not dnn.cameras or camera in dnn.cameras]
        if not served:
            wanted, present = ", ".join(dnn.cameras), ", ".join(cameras)
            raise UsageError(f"parameter dnn.{name}.cameras is {wanted}; this run has the cameras {present}")
        streams += [(name, camera) for camera in served]
    for camera in cameras:
        serving = [dnn for dnn, name in streams if name == camera]
        if not serving:
            raise UsageError(f"camera {camera} of this run is in none of the parameters dnn.<dnn>.cameras")
        if not any(config.dnns[dnn].enable for dnn in serving):
            names = ", ".join(f"dnn.{dnn}.enable" for dnn in serving)
            raise UsageError(f"camera {camera} of this run has no results: its DNNs are all switched off by {names}")
    return streams


def reported_results(text: str) -> dict[str, tuple[str, ResultKind]]:
    """Name and kind of each DNN's result, or of the first of several. text: value `results` of the node's status."""
    found: dict[str, tuple[str, ResultKind]] = {}
    for dnn, output, kind in _RESULT.findall(text):
        found.setdefault(dnn, (dnn + output, RESULT_KINDS.get(kind)))
    return found


def flat_parameters(config: NodeConfig) -> Mapping[str, Any]:
    """Parameters as in a parameter file, without empty lists and mappings, which are defaults anyway: YAML parameter
    files cannot contain empty lists, and rcl prefixes the names that follow an empty mapping with the mapping's name.
    """
    values = config.model_dump()
    cameras, dnns = values.pop("cameras"), values.pop("dnns")
    for dnn in dnns.values():
        outputs = dnn.pop("outputs")
        dnn |= {"outputs": list(outputs), "output": outputs}
    values |= {"cameras": list(cameras), "dnns": list(dnns), "camera": cameras, "dnn": dnns}
    parameters: Mapping[str, Any] = _without_empty(values)
    return parameters


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item not in ([], {})}
    return value


def time_bar(seconds: float, what: str) -> tqdm[Any]:
    """A bar of `seconds`, on stderr if that is a terminal; see :func:`advance`."""
    text = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
    return tqdm(total=seconds, desc=what, bar_format=text, disable=None)


def advance(bar: tqdm[Any]) -> Callable[[float], object]:
    """A function that moves a time bar by some seconds, up to its end: tqdm would forget the total."""
    return lambda seconds: bar.update(max(0.0, min(seconds, (bar.total or 0.0) - bar.n)))
