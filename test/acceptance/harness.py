"""What a user of the node has: its process, and a ROS 2 program of their own.

:class:`Client` is a plain rclpy program in the process of the tests: it publishes images, records topics, calls
services and reads ``/diagnostics``. :class:`Node` is the node, started by the installed command with a parameter file,
with its services and statuses. :class:`DnnOnCamera` sends images and keeps the accounts of one DNN. Nothing here
imports multi_dnn_ros, and no test asserts a time: it waits for a condition.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

T = TypeVar("T")

#: Long enough for a machine with other work on every core; only a failing test waits for so long.
LIMIT_S = 120.0
#: For what must be received completely, however late the test reads it.
ALL = QoSProfile(depth=1000)
#: For topics that a late subscriber gets as well.
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
IMAGE = np.random.default_rng(2).integers(0, 255, (120, 160, 3), np.uint8)
_LEVELS = {b"\0": "OK", b"\1": "WARN", b"\2": "ERROR", b"\3": "STALE"}

#: Processes of the running test module; the log of each is shown when a test fails.
RUNNING: list[Node] = []


def installed(program: str) -> list[str]:
    """The command line of an installed program: of this interpreter's environment, or in a ROS 2 workspace on PATH."""
    script = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert script is not None, f"{program} is installed neither beside {sys.executable} nor on PATH"
    return [sys.executable, script]


def write_parameter_file(file: Path, parameters: Mapping[str, Any]) -> Path:
    """For nodes of every name."""
    copies = json.loads(json.dumps(parameters))  # rcl refuses the aliases that YAML has for the same object
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": copies}}))
    return file


@dataclass(frozen=True)
class Status:
    """One status of ``/diagnostics``."""

    level: str
    message: str
    values: Mapping[str, str]

    def number(self, key: str) -> float:
        return float(self.values[key])


@dataclass
class Recording:
    """The messages of one topic, in the order of their arrival, with the times of their publication in ns."""

    topic: str
    messages: list[Any] = field(default_factory=list)
    published_at: list[int] = field(default_factory=list)

    def add(self, message: Any, info: Mapping[str, int]) -> None:
        self.messages.append(message)
        self.published_at.append(info["source_timestamp"])

    @property
    def stamps(self) -> list[int]:
        """header.stamp of every message, in nanoseconds."""
        return [stamp_ns(message) for message in self.messages]

    def at(self, stamp: int) -> Any:
        """The only message with this stamp, or None."""
        found = [message for message in self.messages if stamp_ns(message) == stamp]
        assert len(found) < 2, f"{len(found)} messages on {self.topic} with stamp {stamp}"
        return found[0] if found else None

    def check_unique(self) -> None:
        """No image was answered twice."""
        twice = {stamp for stamp in self.stamps if self.stamps.count(stamp) > 1}
        assert not twice, f"{self.topic}: answered more than once: {sorted(twice)}"


def stamp_ns(message: Any) -> int:
    """header.stamp in nanoseconds."""
    return int(message.header.stamp.sec) * 1_000_000_000 + int(message.header.stamp.nanosec)


def raw_image(pixels: npt.NDArray[Any], encoding: str = "rgb8", padding: int = 0, big_endian: bool = False) -> Image:
    """A sensor_msgs/Image of an array (rows, width[, channels]).

    padding: bytes at the end of each row. The height is that of the array; planar YUV images need another one.
    """
    values = pixels.astype(pixels.dtype.newbyteorder(">" if big_endian else "<"))
    rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(pixels), -1)
    step = rows.shape[1] + padding
    data = np.full((len(rows), step), 0xA5, np.uint8)
    data[:, : rows.shape[1]] = rows
    message = Image(height=len(pixels), width=pixels.shape[1], encoding=encoding, step=step, data=data.tobytes())
    message.is_bigendian = int(big_endian)
    return message


def pixels_of(message: Image) -> npt.NDArray[np.uint8]:
    """(H, W, 3) RGB of an rgb8 or bgr8 image, or (H, W) of a mono8 image."""
    data = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    if message.encoding == "mono8":
        return data[:, : message.width]
    pixels = data[:, : 3 * message.width].reshape(message.height, message.width, 3)
    assert message.encoding in ("rgb8", "bgr8"), message.encoding
    return pixels if message.encoding == "rgb8" else pixels[..., ::-1]


class Camera:
    """A publisher of images with a stamp of its own for each. node: name of its node, by default the client's."""

    def __init__(self, client: Client, topic: str, kind: type = Image, qos: QoSProfile = ALL, node: str = "") -> None:
        self.client = client
        self.topic = topic
        self._node = rclpy.create_node(node, context=client.context) if node else client.node
        self.publisher = self._node.create_publisher(kind, topic, qos)
        self.sent: list[int] = []

    def send(self, image: Any = IMAGE, stamp: int | None = None) -> int:
        """Publish a message, or an array as rgb8; returns its stamp, by default one that no other image has."""
        message = raw_image(image) if isinstance(image, np.ndarray) else image
        stamp = self.client.new_stamp() if stamp is None else stamp
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
        message.header.frame_id = message.header.frame_id or "camera_optical"
        self.publisher.publish(message)
        self.sent.append(stamp)
        return stamp

    def send_until(self, condition: Callable[[], T], what: str, period_s: float = 0.03, image: Any = IMAGE) -> T:
        """Send the image again and again until `condition` is true."""

        def send() -> T:
            self.send(image)
            self.client.spin(period_s)
            return condition()

        return self.client.wait_for(send, what)

    def send_until_answered(self, results: Recording, image: Any = IMAGE) -> None:
        """Send images until the newest one is answered; then no earlier one is on its way."""

        def answered() -> bool:
            last = self.send(image)
            end = time.monotonic() + 2
            while not results.at(last) and time.monotonic() < end:
                self.client.spin(0.02)
            return bool(results.at(last))

        self.client.wait_for(answered, f"an answer on {results.topic} to an image on {self.topic}")

    def close(self) -> None:
        self._node.destroy_publisher(self.publisher)
        if self._node is not self.client.node:
            self._node.destroy_node()


class Client:
    """A ROS 2 node beside the one that is tested. Callbacks run in :meth:`wait_for` and :meth:`spin`."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("acceptance", context=self.context, use_global_arguments=False)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._last_stamp = 0
        self._recordings: list[Recording] = []
        self._services: dict[str, Any] = {}
        self.statuses: dict[str, Status] = {}
        self.received: Counter[str] = Counter()  # statuses, by name
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._read_diagnostics, ALL)

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def _read_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.received[status.name] += 1
            values = {value.key: value.value for value in status.values}
            self.statuses[status.name] = Status(_LEVELS[bytes(status.level)], status.message, values)

    def new_stamp(self) -> int:
        """The time now, later than every earlier one."""
        self._last_stamp = max(self._last_stamp + 1_000, time.time_ns())
        return self._last_stamp

    def spin(self, seconds: float = 0.0) -> None:
        """Run what has arrived, and what arrives within `seconds`."""
        end = time.monotonic() + seconds
        while True:
            self._executor.spin_once(timeout_sec=max(0.0, min(0.05, end - time.monotonic())))
            if time.monotonic() >= end:
                return

    def wait_for(self, condition: Callable[[], T], what: str, timeout_s: float = LIMIT_S) -> T:
        """The first true value of `condition`. Otherwise the error says what has been received instead."""
        end = time.monotonic() + timeout_s
        while True:
            if value := condition():
                return value
            for node in RUNNING:
                assert not node.failed, f"{what}: {node.name} has ended with exit code {node.process.returncode}"
            if time.monotonic() > end:
                received = {recording.topic: len(recording.messages) for recording in self._recordings}
                statuses = [f"{name}: {status.level} {status.message}" for name, status in self.statuses.items()]
                raise AssertionError(f"not within {timeout_s:g} s: {what}; received: {received}; {statuses}")
            self._executor.spin_once(timeout_sec=0.05)

    def record(self, topic: str, kind: type, qos: QoSProfile = ALL) -> Recording:
        """Record a topic from now on; returns when a publisher is connected."""
        recording = Recording(topic)
        subscription = self.node.create_subscription(kind, topic, recording.add, qos)
        self._recordings.append(recording)
        self.wait_for(subscription.get_publisher_count, f"a publisher of {topic}")
        return recording

    def request(self, service: str, kind: type, **fields: Any) -> Any:
        """Call a service; a future of its response."""
        if service not in self._services:
            self._services[service] = self.node.create_client(kind, service)
        client = self._services[service]
        self.wait_for(client.service_is_ready, f"service {service}")
        return client.call_async(kind.Request(**fields))

    def call(self, service: str, kind: type, **fields: Any) -> Any:
        future = self.request(service, kind, **fields)
        self.wait_for(future.done, f"the response of {service}")
        return future.result()


class Node:
    """The node in a process of its own.

    name: full name of the node. ros_arguments: what follows ``--ros-args``, in addition to the name and the parameter
    file. The log is a file in `folder`.
    """

    def __init__(
        self,
        client: Client,
        folder: Path,
        parameters: Mapping[str, Any],
        *,
        name: str = "/multi_dnn",
        ros_arguments: Sequence[str] = (),
    ) -> None:
        self.client = client
        self.name = name
        namespace, _, base = name.rpartition("/")
        stem = f"{name.strip('/').replace('/', '_')}_{len(RUNNING)}"
        self.parameter_file = folder / f"{stem}.yaml"
        write_parameter_file(self.parameter_file, parameters)
        self.log_file = folder / f"{stem}.log"
        ros = [*(["-r", f"__ns:={namespace}"] if namespace else []), "-r", f"__node:={base}", *ros_arguments]
        command = [*installed("multi-dnn"), "run", "--ros-args", "--params-file", str(self.parameter_file), *ros]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._awaited = False
        RUNNING.append(self)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error that no test waits for."""
        return not self._awaited and self.process.poll() not in (None, 0)

    def topic(self, name: str) -> str:
        return f"{self.name}/{name}"

    def end(self, number: int = signal.SIGINT) -> int:
        """Send the signal, unless the process has ended; the exit code."""
        self._awaited = True
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def status(self, name: str) -> Status:
        """The newest status, such as ``camera front``; without values if there was none."""
        return self.client.statuses.get(f"{self.name[1:]}: {name}", Status("none", "", {}))

    def wait_for_diagnostics(self) -> None:
        """Return when two more messages have arrived: the second one describes a time after this call."""
        name = f"{self.name[1:]}: node"
        target = self.client.received[name] + 2
        self.client.wait_for(lambda: self.client.received[name] >= target, f"diagnostics of {self.name}")

    @property
    def engine_pid(self) -> int:
        """The process that runs the DNNs; 0: none."""
        pid = self.status("engine cpu").values.get("pid", "")
        return int(pid) if pid.isdecimal() else 0

    def get_parameters(self, *names: str) -> list[Any]:
        response = self.client.call(f"{self.name}/get_parameters", GetParameters, names=list(names))
        return [parameter_value_to_python(value) for value in response.values]

    def try_to_set(self, name: str, value: Any) -> str:
        """Set a parameter; the reason if that was rejected, else an empty string."""
        messages = [Parameter(name, value=value).to_parameter_msg()]
        (result,) = self.client.call(f"{self.name}/set_parameters", SetParameters, parameters=messages).results
        assert result.successful or result.reason
        return "" if result.successful else str(result.reason)

    def set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            assert not (reason := self.try_to_set(name, value)), reason

    def request_state(self, transition: str) -> Any:
        """Ask for a transition (configure, activate, deactivate, cleanup, shutdown); a future of the response."""
        name = f"{self.state()}_shutdown" if transition == "shutdown" else transition
        number = getattr(Transition, f"TRANSITION_{name.upper()}")
        request = Transition(id=number, label=transition)
        return self.client.request(f"{self.name}/change_state", ChangeState, transition=request)

    def change_state(self, transition: str) -> bool:
        response = self.request_state(transition)
        self.client.wait_for(response.done, f"the response to {transition}")
        return bool(response.result().success)

    def state(self) -> str:
        return str(self.client.call(f"{self.name}/get_state", GetState).current_state.label)

    def wait_until_active(self) -> None:
        """Return when the node says in its diagnostics that it is active."""

        def ended() -> bool:
            status = self.status("node")
            return status.level == "ERROR" or status.message == "active"

        self.client.wait_for(ended, f"{self.name} is active")
        assert self.status("node").level != "ERROR", self.status("node").message


class DnnOnCamera:
    """Sends images of a camera to a DNN with boxes, and compares its accounts with what was sent and received."""

    def __init__(self, node: Node, dnn: str = "object", name: str = "front", camera: Camera | None = None) -> None:
        self.node = node
        namespace = node.name.rpartition("/")[0]
        self.camera = camera or Camera(node.client, f"{namespace}/{name}/image_raw")
        self._status = f"{dnn} on {name}"
        self.results = node.client.record(node.topic(f"{name}/{dnn}/detections"), Detection2DArray)
        self._before: Counter[str] = Counter()
        self._sent = self._answered = 0

    def connect(self, image: Any = IMAGE) -> DnnOnCamera:
        """Send images until one is answered; returns itself."""
        self.camera.send_until_answered(self.results, image)
        return self

    def answer(self, image: Any = IMAGE, stamp: int | None = None) -> Any:
        """Send one image; its result."""
        stamp = self.camera.send(image, stamp)
        return self.node.client.wait_for(lambda: self.results.at(stamp), f"a result with stamp {stamp}")

    def begin(self) -> None:
        """:meth:`account`, :meth:`answers` and :meth:`check` count from now on."""
        self.node.wait_for_diagnostics()
        self._before = Counter()
        self.node.client.wait_for(lambda: not self.account()["pending"], f"no pending frame of {self._status}")
        self._before, self._sent = self.account(), len(self.camera.sent)
        self._answered = len(self.results.messages)

    def answers(self) -> int:
        return len(self.results.messages) - self._answered

    def account(self) -> Counter[str]:
        """The newest counts since :meth:`begin`: offered, published, pending, and the drops by their reason."""
        counts: Counter[str] = Counter()
        for key, value in self.node.status(self._status).values.items():
            if key.startswith("dropped: ") or key in ("offered", "published", "pending"):
                counts[key.removeprefix("dropped: ")] = int(value)
        assert 2 * counts["offered"] == counts.total(), f"{self._status}: {counts}"
        return counts - self._before

    def check(self, *reasons: str) -> Counter[str]:
        """The counts when all images have one outcome: a result, or a drop for one of `reasons` or `overwritten`."""
        offered = len(self.camera.sent) - self._sent

        def finished() -> bool:
            account = self.account()
            complete = account["offered"] == offered and not account["pending"]
            return complete and self.answers() >= account["published"]

        self.node.client.wait_for(finished, f"outcomes of {offered} frames for {self._status}")
        account = self.account()
        assert account["published"] == self.answers(), "results that are not counted"
        assert account.keys() <= {"offered", "published", "overwritten", *reasons}
        self.results.check_unique()
        return account
