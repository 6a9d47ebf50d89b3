"""What a user of the node has: its process, and a ROS 2 program of their own.

:class:`NodeProcess` is the node, started by the installed command with a parameter file. :class:`Client` is a plain
rclpy program in the process of the tests: it publishes images, records topics, calls services and reads
``/diagnostics``. Nothing here imports multi_dnn_ros, and no test asserts a time: it waits for a condition.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.srv import GetParameters, SetParameters, SetParametersAtomically
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

T = TypeVar("T")

#: Long enough for a machine with other work on every core; only a failing test waits for so long.
LIMIT_S = 120.0
#: For what must be received completely, however late the test reads it.
ALL = QoSProfile(depth=1000)
#: For topics that a late subscriber gets as well.
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
LEVELS = {b"\0": "OK", b"\1": "WARN", b"\2": "ERROR", b"\3": "STALE"}

#: Processes of the running test module; the log of each is shown when a test fails.
RUNNING: list[NodeProcess] = []


def installed(program: str) -> list[str]:
    """The command line of an installed program: of this interpreter's environment, or in a ROS 2 workspace on PATH."""
    script = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert script is not None, f"{program} is installed neither beside {sys.executable} nor on PATH"
    return [sys.executable, script]


def environment(domain: int, **variables: str) -> dict[str, str]:
    """That of the tests, in a ROS domain that only this computer sees."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MULTI_DNN_ROS_")}
    own = {"ROS_DOMAIN_ID": str(domain), "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "PYTHONUNBUFFERED": "1"}
    return {**inherited, **own, **variables}


def write_parameters(file: Path, parameters: Mapping[str, Any], node: str = "/**") -> Path:
    """A ROS 2 parameter file with nested parameters."""
    copies = json.loads(json.dumps(parameters))  # rcl refuses the aliases that YAML has for the same object
    file.write_text(yaml.safe_dump({node: {"ros__parameters": copies}}, sort_keys=False))
    return file


class NodeProcess:
    """The node in a process of its own.

    program: ``multi-dnn`` (with ``run``) or ``multi_dnn_node``. name: full name of the node. ros_arguments: what
    follows ``--ros-args``, in addition to the name and the parameter file. The log is a file in `folder`.
    """

    def __init__(
        self,
        folder: Path,
        domain: int,
        parameters: Mapping[str, Any],
        *,
        name: str = "/multi_dnn",
        program: str = "multi-dnn",
        ros_arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        namespace, _, base = name.rpartition("/")
        stem = f"{name.strip('/').replace('/', '_')}_{len(RUNNING)}"
        file = write_parameters(folder / f"{stem}.yaml", parameters)
        self.log_file = folder / f"{stem}.log"
        ros = [*(["-r", f"__ns:={namespace}"] if namespace else []), "-r", f"__node:={base}", *ros_arguments]
        if program == "multi-dnn":
            command = [*installed(program), "run", "--params-file", str(file), "--ros-args", *ros]
        else:
            command = [*installed(program), "--ros-args", "--params-file", str(file), *ros]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment(domain, **(variables or {}))
            )
        self._awaited = False
        RUNNING.append(self)

    @property
    def log(self) -> str:
        """What the node has written so far."""
        return self.log_file.read_text(errors="replace")

    @property
    def failed(self) -> bool:
        """Whether it has ended with an error that no test waits for."""
        return not self._awaited and self.process.poll() not in (None, 0)

    def topic(self, name: str) -> str:
        """The full name of a topic or service ``~/name``."""
        return f"{self.name}/{name}"

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """The exit code, when the process has ended."""
        self._awaited = True
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {timeout_s:g} s") from None

    def end(self, number: int = signal.SIGINT) -> int:
        """Send the signal, unless the process has ended; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        """End it whatever its state is. Its engine processes then end by themselves."""
        self._awaited = True
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Status:
    """One status of ``/diagnostics``."""

    level: str
    message: str
    values: Mapping[str, str]

    def number(self, key: str) -> float:
        """A value as a number."""
        return float(self.values[key])


@dataclass(frozen=True)
class Account:
    """What the status ``<dnn> on <camera>`` counts. dropped: by reason, without those that are 0."""

    offered: int
    published: int
    pending: int
    dropped: Mapping[str, int]

    def check(self) -> None:
        """Every frame that was offered has one outcome."""
        assert self.offered == self.published + self.pending + sum(self.dropped.values()), self

    def since(self, before: Account) -> Account:
        """The frames after those of `before`."""
        counts = {reason: count - before.dropped.get(reason, 0) for reason, count in self.dropped.items()}
        return Account(
            self.offered - before.offered,
            self.published - before.published,
            self.pending,
            {reason: count for reason, count in counts.items() if count},
        )


@dataclass
class Recording:
    """The messages of one topic, in the order of their arrival, with the times of their publication in ns."""

    topic: str
    messages: list[Any] = field(default_factory=list)
    published_at: list[int] = field(default_factory=list)

    def add(self, message: Any, info: Mapping[str, int]) -> None:
        """Record a message with rclpy's MessageInfo."""
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
    message = Image(height=len(pixels), width=pixels.shape[1], encoding=encoding, step=step)
    message.is_bigendian = int(big_endian)
    message.data = data.tobytes()
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
    """A publisher of images with a stamp of its own for each."""

    def __init__(self, client: Client, topic: str, kind: type, qos: QoSProfile, node: str) -> None:
        self.client = client
        self.topic = topic
        self._node = rclpy.create_node(node, context=client.context) if node else client.node
        self.publisher = self._node.create_publisher(kind, topic, qos)
        self.sent: list[int] = []

    def send(self, image: Any, stamp: int | None = None) -> int:
        """Publish a message, or an array as rgb8; returns its stamp, by default one that no other image has."""
        message = raw_image(image) if isinstance(image, np.ndarray) else image
        stamp = self.client.new_stamp() if stamp is None else stamp
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
        message.header.frame_id = message.header.frame_id or "camera_optical"
        self.publisher.publish(message)
        self.sent.append(stamp)
        return stamp

    def close(self) -> None:
        """The camera leaves."""
        self._node.destroy_publisher(self.publisher)
        if self._node is not self.client.node:
            self._node.destroy_node()


class Client:
    """A ROS 2 node beside the one that is tested. Callbacks run in :meth:`wait_for` and :meth:`spin`."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("acceptance", context=self.context, use_global_arguments=False)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._last_stamp = 0
        self._recordings: list[Recording] = []
        self._services: dict[str, Any] = {}
        self.statuses: dict[str, Status] = {}
        self.diagnostics_received = 0
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._read_diagnostics, ALL)

    def close(self) -> None:
        """Leave the graph."""
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def _read_diagnostics(self, message: DiagnosticArray) -> None:
        self.diagnostics_received += 1
        for status in message.status:
            values = {value.key: value.value for value in status.values}
            self.statuses[status.name] = Status(LEVELS[bytes(status.level)], status.message, values)

    def new_stamp(self) -> int:
        """The time now, later than every earlier one."""
        self._last_stamp = max(self._last_stamp + 1_000, time.time_ns())
        return self._last_stamp

    # Waiting.

    def spin(self, seconds: float = 0.0) -> None:
        """Run what has arrived, and what arrives within `seconds`."""
        end = time.monotonic() + seconds
        while True:
            self._executor.spin_once(timeout_sec=max(0.0, min(0.05, end - time.monotonic())))
            if time.monotonic() >= end:
                return

    def wait_for(
        self, condition: Callable[[], T], what: str, timeout_s: float = LIMIT_S, seen: Callable[[], Any] | None = None
    ) -> T:
        """The first true value of `condition`. Otherwise the error says what there was instead (`seen`)."""
        end = time.monotonic() + timeout_s
        while True:
            if value := condition():
                return value
            for node in RUNNING:
                assert not node.failed, f"{what}: {node.name} has ended with exit code {node.process.returncode}"
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout_s:g} s: {what}; seen: {(seen or self.seen)()}")
            self._executor.spin_once(timeout_sec=0.05)

    def seen(self) -> dict[str, Any]:
        """All that has arrived, in short."""
        statuses = {name: f"{status.level} {status.message}" for name, status in self.statuses.items()}
        return {**statuses, **{recording.topic: len(recording.messages) for recording in self._recordings}}

    # Topics.

    def camera(self, topic: str, kind: type = Image, qos: QoSProfile = ALL, node: str = "") -> Camera:
        """A publisher of images, of another node if `node` names one; see :meth:`connect`."""
        return Camera(self, topic, kind, qos, node)

    def record(self, topic: str, kind: type, qos: QoSProfile = ALL) -> Recording:
        """Record a topic from now on; returns when a publisher is connected."""
        recording = Recording(topic)
        subscription = self.node.create_subscription(kind, topic, recording.add, qos)
        self._recordings.append(recording)
        self.wait_for(subscription.get_publisher_count, f"a publisher of {topic}")
        return recording

    def connect(self, camera: Camera, image: Any, results: Recording) -> None:
        """Send images until one is answered on `results` and all that were received have an outcome."""
        self.wait_for(camera.publisher.get_subscription_count, f"a subscription of {camera.topic}")
        begin = len(camera.sent)

        def answered() -> bool:
            last = camera.send(image)
            self.wait_for_quietly(lambda: results.at(last), 2.0)
            return any(stamp in results.stamps for stamp in camera.sent[begin:])

        self.wait_for(answered, f"an answer on {results.topic} to an image on {camera.topic}")

    def stream_until(
        self, camera: Camera, image: Any, condition: Callable[[], T], what: str, period_s: float = 0.03
    ) -> T:
        """Send the image again and again until `condition` is true."""

        def send() -> T:
            camera.send(image)
            self.spin(period_s)
            return condition()

        return self.wait_for(send, what)

    def wait_for_quietly(self, condition: Callable[[], T], timeout_s: float) -> T | None:
        """The first true value of `condition`, or None if there was none in time."""
        try:
            return self.wait_for(condition, "", timeout_s)
        except AssertionError:
            return None

    def answer(self, camera: Camera, image: Any, results: Recording, stamp: int | None = None) -> Any:
        """Send one image and return its message on `results`."""
        stamp = camera.send(image, stamp)
        return self.wait_for(lambda: results.at(stamp), f"the message with stamp {stamp} on {results.topic}")

    # Diagnostics.

    def status(self, name: str, node: str = "/multi_dnn") -> Status:
        """The newest status, such as ``camera front``; without values if there was none."""
        return self.statuses.get(f"{node[1:]}: {name}", Status("none", "", {}))

    def account(self, dnn: str, camera: str = "front", node: str = "/multi_dnn") -> Account:
        """The counts of a DNN on a camera, all 0 before there are any; checks their sum."""
        values = self.status(f"{dnn} on {camera}", node).values
        dropped = {
            key.removeprefix("dropped: "): int(value)
            for key, value in values.items()
            if key.startswith("dropped: ") and int(value)
        }
        counts = [int(values.get(key, 0)) for key in ("offered", "published", "pending")]
        account = Account(*counts, dropped)
        account.check()
        return account

    def fresh_diagnostics(self) -> None:
        """Return when two more messages have arrived: the last one describes a time after this call."""
        target = self.diagnostics_received + 2
        self.wait_for(lambda: self.diagnostics_received >= target, "diagnostics")

    def settled(self, dnn: str, camera: str = "front", node: str = "/multi_dnn") -> Account:
        """The counts when no frame is pending and no further one is on its way."""
        self.fresh_diagnostics()

        def unchanged() -> Account | None:
            before = self.account(dnn, camera, node)
            self.fresh_diagnostics()
            after = self.account(dnn, camera, node)
            return after if after == before and not after.pending else None

        return self.wait_for(unchanged, f"an account of {dnn} on {camera} without pending frames")

    # Services.

    def request(self, service: str, kind: type, **fields: Any) -> Any:
        """Call a service; a future of its response."""
        if service not in self._services:
            self._services[service] = self.node.create_client(kind, service)
        client = self._services[service]
        self.wait_for(client.service_is_ready, f"service {service}")
        return client.call_async(kind.Request(**fields))

    def call(self, service: str, kind: type, **fields: Any) -> Any:
        """The response of a service."""
        future = self.request(service, kind, **fields)
        self.wait_for(future.done, f"the response of {service}")
        return future.result()

    def get_parameters(self, *names: str, node: str = "/multi_dnn") -> list[Any]:
        """The values of parameters; None: not set."""
        response = self.call(f"{node}/get_parameters", GetParameters, names=list(names))
        return [parameter_value_to_python(value) for value in response.values]

    def set_parameters(self, values: Mapping[str, Any], node: str = "/multi_dnn") -> dict[str, str]:
        """Set parameters one by one; the reasons for those that were rejected."""
        response = self.call(f"{node}/set_parameters", SetParameters, parameters=_messages(values))
        return {
            name: result.reason for name, result in zip(values, response.results, strict=True) if not result.successful
        }

    def set_together(self, values: Mapping[str, Any], node: str = "/multi_dnn") -> str | None:
        """Set all parameters or none; the reason if they were rejected."""
        request = {"parameters": _messages(values)}
        result = self.call(f"{node}/set_parameters_atomically", SetParametersAtomically, **request).result
        return None if result.successful else str(result.reason)

    def request_state(self, transition: str, node: str = "/multi_dnn") -> Any:
        """Ask for a transition (configure, activate, deactivate, cleanup, shutdown); a future of the response."""
        name = f"{self.state(node)}_shutdown" if transition == "shutdown" else transition
        number = getattr(Transition, f"TRANSITION_{name.upper()}")
        return self.request(f"{node}/change_state", ChangeState, transition=Transition(id=number, label=transition))

    def change_state(self, transition: str, node: str = "/multi_dnn") -> bool:
        """Whether a transition succeeded."""
        response = self.request_state(transition, node)
        self.wait_for(response.done, f"the response to {transition}")
        return bool(response.result().success)

    def state(self, node: str = "/multi_dnn") -> str:
        """The state of the life cycle."""
        return str(self.call(f"{node}/get_state", GetState).current_state.label)

    def forget(self, node: str) -> None:
        """Forget the statuses of an earlier node of this name."""
        self.spin()
        for name in [name for name in self.statuses if name.startswith(f"{node[1:]}: ")]:
            del self.statuses[name]

    def wait_until_active(self, node: str = "/multi_dnn") -> None:
        """Return when the node says in its diagnostics that it is active."""

        def active() -> bool:
            status = self.status("node", node)
            assert status.level != "ERROR", status
            return status.message == "active"

        self.wait_for(active, f"{node} is active")


def _messages(values: Mapping[str, Any]) -> list[ParameterMessage]:
    return [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process is stopped (SIGSTOP) inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
