"""Two processes on the wire: images, services of a managed node, discovery, and a process that is killed."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

_CAMERA = """
import sys, rclpy
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image
rclpy.init(args=[])
node = rclpy.create_node(sys.argv[1])
publisher = node.create_publisher(Image, "image", 2)
data = bytes(range(256)) * 3600
count = 0
def send():
    global count
    publisher.publish(Image(height=480, width=640, encoding="rgb8", step=1920, is_bigendian=0, data=data,
        header={"frame": None} and __import__("std_msgs.msg").msg.Header(frame_id=str(count))))
    count += 1
node.create_timer(1 / 30, send)
rclpy.spin(node)
"""

_MANAGED = """
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.lifecycle import LifecycleNode
rclpy.init(args=[])
node = LifecycleNode("managed")
node.declare_parameter("rate", 10.0)
try:
    rclpy.spin(node)
except (KeyboardInterrupt, ExternalShutdownException):
    pass
finally:
    node.destroy_node()
    rclpy.try_shutdown()
print("ended")
"""

_LISTENER = """
import rclpy
from std_msgs.msg import String
rclpy.init(args=[])
node = rclpy.create_node("listener")
node.create_subscription(String, "text", print, 1)
rclpy.spin(node)
"""


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)


def test_images_cross_processes_also_after_a_kill(
    ros: Any, start_process: Callable[..., Any], spin_until: Callable[..., None]
) -> None:
    from sensor_msgs.msg import Image

    node = ros.create_node("viewer")
    got: list[Any] = []
    node.create_subscription(Image, "image", got.append, 2)
    camera = start_process(_CAMERA, "first")
    spin_until(node, lambda: len(got) >= 20)
    assert bytes(got[0].data) == bytes(range(256)) * 3600
    numbers = [int(message.header.frame_id) for message in got]
    assert numbers == sorted(set(numbers))  # a busy reader with a queue of two may lose some
    assert ("first", "/") in node.get_node_names_and_namespaces()
    _kill(camera)
    got.clear()
    start_process(_CAMERA, "second")
    spin_until(node, lambda: len(got) >= 5)


def test_parameter_and_lifecycle_services_cross_processes(ros: Any, start_process: Callable[..., Any]) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState, GetState
    from rcl_interfaces.srv import DescribeParameters, GetParameters, GetParameterTypes, ListParameters, SetParameters
    from rclpy.parameter import Parameter, parameter_value_to_python

    managed = start_process(_MANAGED)
    node = ros.create_node("tool")

    def call(srv_type: Any, name: str, **fields: Any) -> Any:
        client = node.create_client(srv_type, f"/managed/{name}")
        assert client.wait_for_service(30.0)
        future = client.call_async(srv_type.Request(**fields))
        ros.spin_until_future_complete(node, future, timeout_sec=30.0)
        node.destroy_client(client)
        return future.result()

    listed = call(ListParameters, "list_parameters").result.names
    assert listed == ["use_sim_time", "start_type_description_service", "rate"]
    changes = [Parameter("rate", value=5.0), Parameter("rate", value="fast"), Parameter("nothing", value=1)]
    wanted = [entry.to_parameter_msg() for entry in changes]
    results = call(SetParameters, "set_parameters", parameters=wanted).results
    assert [result.successful for result in results] == [True, False, False]
    assert "nothing" in results[2].reason
    (value,) = call(GetParameters, "get_parameters", names=["rate"]).values
    assert parameter_value_to_python(value) == 5.0
    assert call(GetParameters, "get_parameters", names=["rate", "nothing"]).values == []
    assert list(call(GetParameterTypes, "get_parameter_types", names=["rate"]).types) == [3]
    assert call(DescribeParameters, "describe_parameters", names=["rate"]).descriptors[0].name == "rate"
    assert call(ChangeState, "change_state", transition=Transition(label="configure")).success
    assert call(GetState, "get_state").current_state.label == "inactive"

    managed.terminate()
    assert managed.wait(30.0) == 0
    assert "ended" in managed.stdout.read()


def test_domains_are_separate(ros: Any, start_process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from rclpy.context import Context
    from std_msgs.msg import String

    other = Context()
    other.init([], domain_id=ros.create_node("probe").context.get_domain_id() + 100)
    here, there = ros.create_node("here"), ros.create_node("there", context=other)
    publisher = here.create_publisher(String, "t", 1)
    there.create_subscription(String, "t", print, 1)
    neighbour = ros.create_node("neighbour", namespace="/other")
    neighbour.create_subscription(String, "t", print, 1)
    here.create_subscription(String, "t", print, 1)
    deadline = time.monotonic() + 30
    while publisher.get_subscription_count() < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert publisher.get_subscription_count() == 1
    other.shutdown()


def test_a_stopped_subscription_has_not_acknowledged(
    ros: Any, start_process: Callable[..., Any], spin_until: Callable[..., None]
) -> None:
    from rclpy.duration import Duration
    from rclpy.exceptions import InvalidHandle
    from std_msgs.msg import String

    node = ros.create_node("talker")
    publisher = node.create_publisher(String, "text", 1)
    assert publisher.wait_for_all_acked(Duration(seconds=0))  # there is no subscription
    listener = start_process(_LISTENER)
    spin_until(node, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data="first"))
    assert publisher.wait_for_all_acked(Duration(seconds=30))
    listener.send_signal(signal.SIGSTOP)
    stopped = psutil.Process(listener.pid)
    spin_until(node, lambda: stopped.status() == psutil.STATUS_STOPPED)
    publisher.publish(String(data="second"))
    assert not publisher.wait_for_all_acked(Duration(seconds=0.2))
    assert not publisher.wait_for_all_acked(Duration(seconds=0))
    listener.send_signal(signal.SIGCONT)
    assert publisher.wait_for_all_acked(Duration(seconds=30))
    node.destroy_publisher(publisher)
    with pytest.raises(InvalidHandle, match="the publisher on /text was destroyed"):
        publisher.wait_for_all_acked(Duration(seconds=0))
