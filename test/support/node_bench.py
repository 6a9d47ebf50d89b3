"""The node and its surroundings in one process: cameras, listeners and a caller of services around a MultiDnnNode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from node_pipelines import POISON as POISON
from node_pipelines import build
from rcl_interfaces.srv import SetParameters
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from multi_dnn_ros.ros.node import MultiDnnNode

WAIT_S = 60.0
_TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "cleanup": Transition.TRANSITION_CLEANUP,
    "shutdown": Transition.TRANSITION_INACTIVE_SHUTDOWN,
}


class Bench:
    """Everything around the node. All callbacks run in the test's thread, while it waits."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.peer = rclpy.create_node("peer", context=self.context)
        self.executor.add_node(self.peer)
        self.nodes: list[MultiDnnNode] = []
        self.reports: list[Any] = []
        self.peer.create_subscription(DiagnosticArray, "/diagnostics", self.reports.append, QoSProfile(depth=100))

    def node(
        self,
        parameters: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> MultiDnnNode:
        """A node with one DNN `object` on camera `front`, in this process, unless the parameters say otherwise."""
        values = {"autostart": False, "dnns": ["object"], "diagnostics_period_s": 0.1, "isolation": "none",
                  **(parameters or {})}  # fmt: skip
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        settings = {
            "build": build,
            "context": self.context,
            "parameter_overrides": overrides,
            **arguments,
        }
        node = MultiDnnNode(**settings)
        self.nodes.append(node)
        self.executor.add_node(node)
        return node

    def until(self, condition: Callable[[], object], what: str = "the condition", limit_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}"
            self.executor.spin_once(timeout_sec=0.02)

    def call(self, kind: type, name: str, request: Any) -> Any:
        client = self.peer.create_client(kind, name)
        self.until(client.service_is_ready, name)
        future = client.call_async(request)
        self.until(future.done, name)
        self.peer.destroy_client(client)
        return future.result()

    def change(self, transition: str, node: str = "/multi_dnn") -> bool:
        """A transition as `ros2 lifecycle set` asks for it."""
        request = ChangeState.Request(transition=Transition(id=_TRANSITIONS[transition], label=transition))
        return bool(self.call(ChangeState, f"{node}/change_state", request).success)

    def state(self) -> str:
        return str(self.call(GetState, "/multi_dnn/get_state", GetState.Request()).current_state.label)

    def set(self, name: str, value: Any) -> tuple[bool, str]:
        """A parameter as `ros2 param set` sets it; whether it was taken, and the reason."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        (result,) = self.call(SetParameters, "/multi_dnn/set_parameters", request).results
        return result.successful, result.reason

    def camera(self, topic: str = "/front/image_raw", kind: type = Image) -> Any:
        """A publisher, once the node listens to it."""
        publisher = self.peer.create_publisher(kind, topic, QoSProfile(depth=50))
        self.until(lambda: publisher.get_subscription_count() > 0, f"a subscription to {topic}")
        return publisher

    def listen(self, topic: str, kind: type) -> list[Any]:
        """What arrives on a topic, from when its publisher and this subscription know each other."""
        heard: list[Any] = []
        self.peer.create_subscription(kind, topic, heard.append, QoSProfile(depth=100))
        listeners = sum(subscription.topic_name == topic for subscription in self.peer.subscriptions)

        def matched() -> bool:
            publishers = [each for node in self.nodes for each in node.publishers if each.topic_name == topic]
            return any(publisher.get_subscription_count() >= listeners for publisher in publishers)

        self.until(matched, f"a publisher of {topic}")
        return heard

    def status(self, name: str) -> Any:
        """The newest status of this name; its values as a dict in `.by_key`."""
        for report in reversed(self.reports):
            for status in report.status:
                if status.name.endswith(f": {name}"):
                    by_key = {item.key: item.value for item in status.values}
                    level = status.level[0] if isinstance(status.level, bytes) else int(status.level)
                    return SimpleNamespace(level=level, message=status.message, by_key=by_key)
        return SimpleNamespace(level=-1, message="", by_key={})

    def close(self) -> None:
        for node in self.nodes:
            node.close()
            node.destroy_node()
        self.executor.shutdown()
        self.peer.destroy_node()
        rclpy.shutdown(context=self.context)


@contextmanager
def stranger_in(domain: int) -> Iterator[Any]:
    """A node of another participant: within one, Fast DDS allows only one type per topic."""
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = rclpy.create_node("stranger", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def image(value: int = 200, stamp: int = 1, size: tuple[int, int] = (8, 6), encoding: str = "rgb8") -> Image:
    """A picture full of `value`, (width, height)."""
    channels = {"rgb8": 3, "bgr8": 3, "mono8": 1}[encoding]
    data = bytes([value]) * (size[0] * size[1] * channels)
    header = Header(stamp=Time(sec=stamp, nanosec=5), frame_id=f"frame{stamp}")
    message = Image(header=header, width=size[0], height=size[1], encoding=encoding, step=size[0] * channels)
    message.data = data
    return message
