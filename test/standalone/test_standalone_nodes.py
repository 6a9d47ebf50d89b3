"""Nodes, executors, parameters, services, time and logging in one process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_messages_arrive_complete_and_in_order(ros: Any, spin_until: Callable[..., None]) -> None:
    from sensor_msgs.msg import Image

    node = ros.create_node("one")
    got: list[Any] = []
    infos: list[Any] = []
    subscription = node.create_subscription(Image, "image", got.append, 10)
    node.create_subscription(Image, "image", lambda message, info: infos.append(info), 10)
    raw: list[bytes] = []
    node.create_subscription(Image, "image", raw.append, 10, raw=True)
    publisher = node.create_publisher(Image, "image", 10)
    spin_until(node, lambda: publisher.get_subscription_count() == 3)
    for index in range(5):
        publisher.publish(Image(height=2, width=index, encoding="rgb8", data=bytes(range(6))))
    spin_until(node, lambda: len(got) == len(infos) == len(raw) == 5)
    assert [message.width for message in got] == [0, 1, 2, 3, 4]
    assert bytes(got[0].data) == bytes(range(6))
    assert infos[0]["source_timestamp"] > 0
    assert infos[0].keys() == {
        "source_timestamp", "received_timestamp", "publication_sequence_number", "reception_sequence_number"
    }  # fmt: skip
    publisher.publish(raw[3])
    spin_until(node, lambda: len(got) == 6)
    assert got[5].width == 3
    assert subscription.get_publisher_count() == 1
    assert node.count_publishers("image") == 1
    assert ("/image", ["sensor_msgs/msg/Image"]) in node.get_topic_names_and_types()


def test_transient_local_reaches_late_subscriptions_and_depth_bounds_them(
    ros: Any, spin_until: Callable[..., None]
) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from std_msgs.msg import String

    node = ros.create_node("latched")
    qos = QoSProfile(depth=2, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    publisher = node.create_publisher(String, "label_info", qos)
    for text in ("a", "b", "c"):
        publisher.publish(String(data=text))
    got: list[str] = []
    node.create_subscription(String, "label_info", lambda message: got.append(message.data), qos)
    spin_until(node, lambda: len(got) >= 2)
    assert got == ["b", "c"]


def test_an_invalid_message_is_dropped_and_the_next_one_delivered(
    ros: Any, spin_until: Callable[..., None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rclpy.exceptions import InvalidHandle
    from sensor_msgs.msg import Image

    node = ros.create_node("robust")
    got: list[Any] = []
    subscription = node.create_subscription(Image, "image", got.append, 10)
    publisher = node.create_publisher(Image, "image", 10)
    spin_until(node, lambda: publisher.get_subscription_count() == 1)
    with pytest.raises(RuntimeError, match="cannot send on rt/image"):
        publisher.publish(b"\x00\x01\x00\x00\xff\xff\xff\xff")
    publisher.publish(Image(width=5))
    publisher.publish(Image(width=7))
    take, damaged = subscription.reader.take, iter([b"\x00\x01\x00\x00\xff\xff\xff\xff"])

    def take_damaged_first() -> Any:
        taken = take()
        return taken and (next(damaged, taken[0]), taken[1])

    monkeypatch.setattr(subscription.reader, "take", take_damaged_first)
    spin_until(node, lambda: bool(got))
    assert got[0].width == 7
    assert "message on /image dropped: builtin_interfaces/msg/Time" in capfd.readouterr().err
    node.destroy_publisher(publisher)
    with pytest.raises(InvalidHandle, match="on /image was destroyed"):
        publisher.publish(Image())


@pytest.mark.parametrize("session_over", [False, True])
def test_a_destroyed_node_creates_nothing(ros: Any, session_over: bool) -> None:
    from rclpy.exceptions import InvalidHandle
    from std_msgs.msg import String
    from std_srvs.srv import Empty

    node, other = ros.create_node("gone"), ros.create_node("other")
    node.destroy_node()
    if session_over:
        ros.shutdown()
    for create in (
        lambda: node.create_publisher(String, "created_late", 1),
        lambda: node.create_subscription(String, "created_late", print, 1),
        lambda: node.create_service(Empty, "created_late", print),
        lambda: node.create_client(Empty, "created_late"),
        lambda: node.create_timer(1.0, print),
        lambda: node.create_guard_condition(print),
    ):
        with pytest.raises(InvalidHandle, match="node /gone was destroyed"):
            create()
    if not session_over:
        assert other.count_publishers("/created_late") == other.count_subscribers("/created_late") == 0


def test_services_answer_and_their_errors_reach_spin(ros: Any, spin_until: Callable[..., None]) -> None:
    from std_srvs.srv import Empty, SetBool

    node = ros.create_node("server")

    def flip(request: Any, response: Any) -> Any:
        response.success, response.message = not request.data, "flipped"
        return response

    node.create_service(SetBool, "~/flip", flip)
    node.create_service(Empty, "broken", lambda request, response: None)
    client = node.create_client(SetBool, "server/flip")
    assert client.wait_for_service(30.0)
    future = client.call_async(SetBool.Request(data=True))
    ros.spin_until_future_complete(node, future, timeout_sec=30.0)
    assert future.result() == SetBool.Response(success=False, message="flipped")
    broken = node.create_client(Empty, "broken")
    assert broken.wait_for_service(30.0)
    pending = broken.call_async(Empty.Request())
    with pytest.raises(TypeError, match="service /broken: the callback must return the response"):
        spin_until(node, pending.done)
    assert not node.create_client(Empty, "nobody").wait_for_service(0.05)
    with pytest.raises(TypeError, match="std_srvs/srv/SetBool_Request"):
        client.call_async(Empty.Request())
    node.destroy_client(broken)
    assert pending.cancelled()


def test_an_exception_in_a_callback_comes_out_of_spin(ros: Any) -> None:
    from rclpy.executors import MultiThreadedExecutor

    def fail() -> None:
        raise KeyError("from the timer")

    for executor in (None, MultiThreadedExecutor(2)):
        node = ros.create_node("fails")
        node.create_timer(0.001, fail)
        with pytest.raises(KeyError, match="from the timer"):
            ros.spin(node, executor)
        node.destroy_node()
        if executor:
            executor.shutdown()


def test_callback_groups_in_several_threads(ros: Any) -> None:
    from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
    from rclpy.executors import MultiThreadedExecutor

    node = ros.create_node("groups")
    meeting = threading.Condition()
    met = threading.Event()
    together_inside = 0
    inside = 0
    max_inside = 0
    runs = 0

    def together() -> None:
        nonlocal together_inside
        with meeting:
            together_inside += 1
            if together_inside == 2:
                met.set()
                meeting.notify_all()
            meeting.wait_for(met.is_set, 30.0)
            together_inside -= 1

    def alone() -> None:
        nonlocal inside, max_inside, runs
        inside += 1
        max_inside = max(max_inside, inside)
        time.sleep(0.002)
        inside -= 1
        runs += 1

    reentrant, exclusive = ReentrantCallbackGroup(), MutuallyExclusiveCallbackGroup()
    for callback, group in ((together, reentrant), (together, reentrant), (alone, exclusive), (alone, exclusive)):
        node.create_timer(0.001, callback, group)
    executor = MultiThreadedExecutor(4)
    executor.add_node(node)
    deadline = time.monotonic() + 30
    while not (met.is_set() and runs >= 10):
        assert time.monotonic() < deadline
        executor.spin_once(0.05)
    assert executor.shutdown(30.0)
    assert max_inside == 1


def test_shutdown_says_whether_the_callbacks_ended(ros: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rclpy.executors import MultiThreadedExecutor

    # A thread may be delayed between a callback's end and _ended(); the callback counts as ended nevertheless.
    ended = MultiThreadedExecutor._ended
    monkeypatch.setattr(MultiThreadedExecutor, "_ended", lambda *args: (time.sleep(0.2), ended(*args)))
    node = ros.create_node("ending")
    inside, let_go = threading.Event(), threading.Event()

    def callback() -> None:
        inside.set()
        assert let_go.wait(30.0)

    node.create_timer(0.001, callback)
    executor = MultiThreadedExecutor(2)
    executor.add_node(node)
    executor.spin_once(30.0)
    assert inside.wait(30.0)
    assert executor.shutdown(0.01) is False
    let_go.set()
    assert executor.shutdown(30.0) is True


def test_a_shutdown_by_another_thread_ends_the_spin(ros: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rclpy.executors import MultiThreadedExecutor

    node = ros.create_node("ended_elsewhere")
    calls: list[None] = []
    node.create_timer(0.001, lambda: calls.append(None))
    executor = MultiThreadedExecutor(2)
    executor.add_node(node)
    next_claim = executor._next

    def shut_down_before_returning(*args: Any) -> Any:
        found = next_claim(*args)
        if len(calls) > 3:
            other = threading.Thread(target=executor.shutdown)
            other.start()
            other.join()
        return found

    monkeypatch.setattr(executor, "_next", shut_down_before_returning)
    executor.spin()  # no "cannot schedule new futures after shutdown"
    assert len(calls) > 3


def test_timers_follow_simulated_time(ros: Any, spin_until: Callable[..., None]) -> None:
    from builtin_interfaces.msg import Time as TimeMessage
    from rclpy.parameter import Parameter
    from rosgraph_msgs.msg import Clock

    node = ros.create_node("simulated", parameter_overrides=[Parameter("use_sim_time", value=True)])
    stage = ros.create_node("stage", start_parameter_services=False)
    publisher = stage.create_publisher(Clock, "/clock", 10)
    ticks: list[int] = []
    node.create_timer(1.0, lambda: ticks.append(node.get_clock().now().nanoseconds // 10**9))
    assert node.get_clock().now().nanoseconds == 0
    spin_until(node, lambda: publisher.get_subscription_count() == 1)

    def move(seconds: int) -> None:
        publisher.publish(Clock(clock=TimeMessage(sec=seconds)))
        spin_until(node, lambda: node.get_clock().now().nanoseconds == seconds * 10**9)
        ros.spin_once(node, timeout_sec=0.0)

    for seconds in (100, 101, 102):
        move(seconds)
    assert ticks == [101, 102]
    move(150)  # a jump skips the periods in between
    assert ticks == [101, 102, 150]
    move(10)  # the bag starts again
    move(11)
    assert ticks == [101, 102, 150, 11]
    assert node.set_parameters([Parameter("use_sim_time", value=False)])[0].successful
    assert node.get_clock().now().nanoseconds > 10**18


def test_a_late_timer_keeps_its_phase(ros: Any) -> None:
    from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
    from rclpy.clock import ClockType, ROSClock
    from rclpy.time import Time
    from rclpy.timer import Timer

    clock = ROSClock()
    clock._set_ros_time_is_active(True)

    def at(nanoseconds: int) -> None:
        clock.set_ros_time_override(Time(nanoseconds=nanoseconds, clock_type=ClockType.ROS_TIME))

    at(1000)
    timer = Timer(lambda: None, MutuallyExclusiveCallbackGroup(), 100, clock)
    at(1099)
    assert not timer.is_ready()
    at(1350)
    assert timer.take() is not None
    assert timer.time_until_next_call() == 50
    timer.cancel()
    at(2000)
    assert timer.take() is None
    timer.reset()
    assert timer.time_until_next_call() == 100


def test_parameters_are_declared_checked_and_announced(ros: Any, spin_until: Callable[..., None]) -> None:
    from rcl_interfaces.msg import (
        FloatingPointRange,
        IntegerRange,
        ParameterDescriptor,
        ParameterEvent,
        SetParametersResult,
    )
    from rclpy import exceptions
    from rclpy.parameter import Parameter

    node = ros.create_node("p", parameter_overrides=[Parameter("rate", value=7.5), Parameter("wrong", value="x")])
    events: list[Any] = []
    node.create_subscription(ParameterEvent, "/parameter_events", events.append, 10)
    ranged = ParameterDescriptor(floating_point_range=[FloatingPointRange(from_value=1.0, to_value=10.0, step=0.5)])
    assert node.declare_parameter("rate", 5.0, ranged).value == 7.5
    node.declare_parameter(
        "count", 3, ParameterDescriptor(integer_range=[IntegerRange(from_value=0, to_value=9, step=3)])
    )
    node.declare_parameter("fixed", "a", ParameterDescriptor(read_only=True))
    node.declare_parameter("any", None, ParameterDescriptor(dynamic_typing=True))
    node.declare_parameter("list", Parameter.Type.STRING_ARRAY)
    with pytest.raises(exceptions.ParameterUninitializedException):
        node.get_parameter("list")
    with pytest.raises(exceptions.InvalidParameterTypeException, match="'wrong' to 'x'"):
        node.declare_parameter("wrong", 1)
    with pytest.raises(exceptions.ParameterAlreadyDeclaredException):
        node.declare_parameter("rate", 1.0)
    with pytest.raises(exceptions.ParameterNotDeclaredException):
        node.get_parameter("nothing")
    with pytest.raises(ValueError, match="typeless"):
        node.declare_parameter("typeless", None, ParameterDescriptor())
    with pytest.warns(UserWarning, match="'typeless'"):
        assert node.declare_parameter("typeless").type_ is Parameter.Type.NOT_SET
    node.undeclare_parameter("typeless")

    def outcome(name: str, value: Any) -> tuple[bool, str]:
        (result,) = node.set_parameters([Parameter(name, value=value)])
        return result.successful, result.reason

    assert outcome("rate", 8.0) == (True, "")
    assert "Min: 1.0, Max: 10.0, value: 11.0" in outcome("rate", 11.0)[1]
    assert "step" in outcome("rate", 8.2)[1]
    assert "out of range" in outcome("rate", float("nan"))[1]
    assert "Wrong parameter type" in outcome("rate", 8)[1]
    assert "step" in outcome("count", 4)[1]
    assert outcome("count", 9) == (True, "")
    assert "read-only" in outcome("fixed", "b")[1]
    assert outcome("any", [1.5]) == (True, "")
    assert outcome("any", "text") == (True, "")

    changed_names: list[str] = []
    node.add_pre_set_parameters_callback(lambda wanted: [*wanted, Parameter("count", value=0)])
    node.add_post_set_parameters_callback(lambda changed: changed_names.extend(entry.name for entry in changed))

    def refuse_odd(wanted: list[Any]) -> Any:
        refused = any(entry.name == "any" and entry.value == "odd" for entry in wanted)
        return SetParametersResult(successful=not refused, reason="odd" if refused else "")

    node.add_on_set_parameters_callback(refuse_odd)
    assert outcome("any", "odd") == (False, "odd")
    assert changed_names == []
    assert outcome("any", "even") == (True, "")
    assert changed_names == ["any", "count"]
    assert node.get_parameter("count").value == 0
    declared = ["rate", "count", "fixed", "any", "list"]
    assert node.list_parameters([], 0).names == ["use_sim_time", "start_type_description_service", *declared]
    spin_until(node, lambda: any(event.changed_parameters and event.node == "/p" for event in events))


def test_an_empty_list_in_a_file_is_a_parameter_without_value(tmp_path: Path) -> None:
    import rclpy
    from rcl_interfaces.msg import ParameterDescriptor
    from rclpy import exceptions

    file = tmp_path / "p.yaml"
    file.write_text("n: {ros__parameters: {dnns: [], cameras: []}}")
    with rclpy.init(args=["--ros-args", "--params-file", str(file)]):
        node = rclpy.create_node("n")
        node.declare_parameter("dnns", ["lane"])
        with pytest.raises(exceptions.ParameterUninitializedException, match="'dnns' is not initialized"):
            node.get_parameter("dnns")
        declared = node.declare_parameter("cameras", ["front"], ParameterDescriptor(dynamic_typing=True))
        assert declared.value is None


def test_a_node_uses_its_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    import rclpy

    with rclpy.init(
        args=[
            "x",
            "--ros-args",
            "-r",
            "__node:=renamed",
            "-r",
            "__ns:=/robot",
            "-p",
            "rate:=3",
            "-r",
            "in:=out",
            "--log-level",
            "warn",
        ]
    ):
        node = rclpy.create_node("original", cli_args=["-p", "own:=1"])
        assert node.get_fully_qualified_name() == "/robot/renamed"
        assert (node.declare_parameter("rate", 1).value, node.declare_parameter("own", 0).value) == (3, 1)
        assert node.resolve_topic_name("in") == "/robot/out"
        node.get_logger().info("hidden")
        node.get_logger().warning("shown")
    from rclpy.logging import LoggingSeverity

    from multi_dnn_ros.standalone import logs

    logs.configure(LoggingSeverity.INFO, {}, console=True)
    err = capfd.readouterr().err
    assert "hidden" not in err
    assert "[robot.renamed]: shown" in err
    assert not rclpy.ok()


def test_log_format_and_conditions(capfd: pytest.CaptureFixture[str]) -> None:
    from rclpy.clock import ClockType, ROSClock
    from rclpy.logging import LoggingSeverity, get_logger
    from rclpy.time import Time

    logger = get_logger("a.b")
    clock = ROSClock()
    clock._set_ros_time_is_active(True)
    for second in range(5):
        clock.set_ros_time_override(Time(seconds=second + 1, clock_type=ClockType.ROS_TIME))
        logger.info(f"throttled {second}", throttle_duration_sec=2.0, throttle_time_source_type=clock)
        logger.error(f"once {second}", once=True)
        logger.warn(f"skipped {second}", skip_first=True)
    logger.get_child("c").set_level(LoggingSeverity.ERROR)
    assert not logger.get_child("c").info("no")
    assert not logger.debug("no")
    lines = capfd.readouterr().err.splitlines()
    assert [line.rsplit(": ", 1)[1] for line in lines if "skipped" not in line] == [
        *("once 0", "throttled 1", "throttled 3")
    ]
    assert [line.rsplit(" ", 1)[1] for line in lines if "skipped" in line] == ["1", "2", "3", "4"]
    import re

    assert re.fullmatch(r"\[ERROR\] \[\d{10}\.\d{9}\] \[a\.b\]: once 0", lines[0])


def test_rosout_carries_the_log(ros: Any, spin_until: Callable[..., None]) -> None:
    from rcl_interfaces.msg import Log

    node = ros.create_node("speaks", namespace="robot")
    got: list[Any] = []
    node.create_subscription(Log, "/rosout", got.append, 10)
    spin_until(node, lambda: node.count_subscribers("/rosout") == 1)
    node.get_logger().error("heard")
    spin_until(node, lambda: any(entry.msg == "heard" for entry in got))
    entry = next(entry for entry in got if entry.msg == "heard")
    assert (entry.level, entry.name, entry.function) == (Log.ERROR, "robot.speaks", "test_rosout_carries_the_log")
    assert entry.file.endswith("test_standalone_nodes.py")


def test_the_log_says_which_network_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    import rclpy

    with rclpy.init(args=[]):
        assert f"ROS domain {os.environ['ROS_DOMAIN_ID']}, network: loopback only (lo)" in capfd.readouterr().err
