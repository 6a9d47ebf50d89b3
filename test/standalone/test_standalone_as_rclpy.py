"""Behaviour of rclpy that programs rely on, and in which the standalone runtime once differed."""

from __future__ import annotations

import array
import asyncio
import math
import pickle
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

WAIT_S = 30.0


# ------------------------------------------------------------------------------------------------ nodes and entities


def test_entities_may_be_destroyed_before_their_node(ros: Any, spin_until: Callable[..., None]) -> None:
    from rclpy.exceptions import InvalidHandle
    from std_msgs.msg import String
    from std_srvs.srv import Empty

    node, other = ros.create_node("brief"), ros.create_node("other")
    publisher = node.create_publisher(String, "brief", 1)
    subscription = node.create_subscription(String, "brief", print, 1)
    service = node.create_service(Empty, "brief", lambda request, response: response)
    entities = [publisher, subscription, service, node.create_client(Empty, "brief"), node.create_timer(1.0, None)]
    spin_until(node, lambda: publisher.get_subscription_count() == 1)
    for entity in entities:
        entity.destroy()
        entity.destroy()
    assert other.count_publishers("/brief") == other.count_subscribers("/brief") == 0
    with pytest.raises(InvalidHandle, match="/brief was destroyed"):
        subscription.get_publisher_count()
    assert isinstance(InvalidHandle("x"), RuntimeError)
    node.destroy_node()
    assert "brief" not in other.get_node_names()


def test_names_are_kept_as_given_and_resolved(ros: Any) -> None:
    from rclpy.exceptions import InvalidServiceNameException, InvalidTopicNameException
    from std_msgs.msg import String
    from std_srvs.srv import Empty

    node = ros.create_node("n", namespace="ns", cli_args=["--ros-args", "-r", "~/private:=/elsewhere"])
    publisher = node.create_publisher(String, "~/a", 1)
    assert (publisher.topic, publisher.topic_name) == ("~/a", "/ns/n/a")
    subscription = node.create_subscription(String, "~/private", print, 1)
    assert (subscription.topic, subscription.topic_name) == ("~/private", "/elsewhere")
    client = node.create_client(Empty, "~/call")
    assert (client.srv_name, client.service_name) == ("~/call", "/ns/n/call")
    assert node.count_publishers("~/a") == 1
    assert node.count_subscribers("~/private") == 0  # counted names are not remapped
    assert ("rt/ns/n/a", ["std_msgs::msg::dds_::String_"]) in node.get_topic_names_and_types(no_demangle=True)
    assert "/ns/n" in node.get_fully_qualified_node_names()
    with pytest.raises(RuntimeError, match=r"failed to resolve name: .*must not start with a number"):
        node.resolve_topic_name("1a")
    with pytest.raises(InvalidTopicNameException, match="must not start with a number"):
        node.create_publisher(String, "1a", 1)
    with pytest.raises(InvalidServiceNameException, match="must not start with a number"):
        node.create_client(Empty, "1a")
    with pytest.raises(ValueError, match=r"unknown substitution: \{robot\}"):
        node.create_subscription(String, "{robot}/x", print, 1)
    with pytest.raises(ValueError, match="topic name '42' is invalid"):
        node.count_publishers("42")
    with pytest.raises(RuntimeError, match="this might be a service"):
        node.create_publisher(Empty, "x", 1)
    with pytest.raises(RuntimeError, match="this might be a message"):
        node.create_client(String, "x")
    with pytest.raises(AttributeError, match="cannot be modified"):
        node.handle = None


def test_a_timer_without_callback_is_given_one_later(ros: Any, spin_until: Callable[..., None]) -> None:
    node = ros.create_node("late")
    timer = node.create_timer(0.001, None)
    called = threading.Event()
    ros.spin_once(node, timeout_sec=0.01)
    timer.callback = called.set
    spin_until(node, called.is_set)
    with pytest.raises(TypeError, match="must be callable, not 3"):
        node.create_timer(1.0, 3)
    with pytest.raises(RuntimeError, match="timer period must be non-negative"):
        node.create_timer(-1.0, None)


def test_a_subscription_takes_one_argument_or_two(ros: Any) -> None:
    from std_msgs.msg import String

    node = ros.create_node("arguments")
    for callback in (lambda: None, lambda a, b, c: None, None):
        with pytest.raises(RuntimeError, match="with the message, or with the message and its info"):
            node.create_subscription(String, "x", callback, 1)


@pytest.mark.parametrize(("offered", "policy"), [("durability", "DURABILITY"), ("reliability", "RELIABILITY")])
def test_incompatible_qos_is_a_warning_on_both_sides(
    ros: Any, spin_until: Callable[..., None], capfd: pytest.CaptureFixture[str], offered: str, policy: str
) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
    from std_msgs.msg import String

    weak = {"durability": DurabilityPolicy.VOLATILE, "reliability": ReliabilityPolicy.BEST_EFFORT}[offered]
    strong = {"durability": DurabilityPolicy.TRANSIENT_LOCAL, "reliability": ReliabilityPolicy.RELIABLE}[offered]
    node = ros.create_node("unlike")
    node.create_publisher(String, "unlike", QoSProfile(depth=1, **{offered: weak}))
    node.create_subscription(String, "unlike", print, QoSProfile(depth=1, **{offered: strong}))
    lines: list[str] = []

    def warned() -> bool:
        lines.extend(line for line in capfd.readouterr().err.splitlines() if "[WARN]" in line)
        return len(lines) >= 2

    spin_until(node, warned)
    warnings = sorted(line.split("[unlike]: ")[1] for line in lines)
    assert warnings == [
        f"New publisher discovered on topic 'unlike', offering incompatible QoS. No messages will be received from it. "
        f"Last incompatible policy: {policy}",
        f"New subscription discovered on topic 'unlike', requesting incompatible QoS. No messages will be sent to it. "
        f"Last incompatible policy: {policy}",
    ]


def test_qos_profiles_check_what_they_are_given() -> None:
    from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

    profile = QoSProfile(history=HistoryPolicy.KEEP_ALL)
    assert (profile.depth, profile.reliability) == (10, ReliabilityPolicy.RELIABLE)
    with pytest.warns(UserWarning, match="zero depth with KEEP_LAST"):
        assert QoSProfile(depth=0).depth == 0
    profile.reliability = 2
    assert profile.reliability is ReliabilityPolicy.BEST_EFFORT
    with pytest.raises(AssertionError, match="lifespan must be a Duration, not 3"):
        profile.lifespan = 3
    with pytest.raises(AssertionError, match="Invalid arguments passed to constructor: deepth"):
        QoSProfile(deepth=1)


# -------------------------------------------------------------------------------------------------------- parameters


def test_parameters_without_value(ros: Any) -> None:
    from rcl_interfaces.msg import ParameterDescriptor, ParameterValue
    from rclpy import exceptions
    from rclpy.parameter import Parameter

    node = ros.create_node("p")
    node.declare_parameter("typed", Parameter.Type.INTEGER)
    assert node.get_parameter_or("typed", Parameter("typed", value=7)).value == 7
    assert node.get_parameter_or("nothing").type_ is Parameter.Type.NOT_SET
    assert node.get_parameter_type("typed") == 0
    node.declare_parameter("any", descriptor=ParameterDescriptor(dynamic_typing=True))
    assert node.get_parameter("any").value is None
    with pytest.raises(ValueError, match="PARAMETER_NOT_SET"):
        node.declare_parameter("bare", ParameterValue(), ParameterDescriptor())
    with pytest.raises(ValueError, match="statically typed of type NOT_SET"):
        node.declare_parameter("bare", Parameter.Type.NOT_SET)
    with pytest.raises(ValueError, match="passing a descriptor with `dynamic_typing=True`"):
        node.declare_parameter("bare", Parameter.Type.BOOL, ParameterDescriptor(dynamic_typing=True))
    with pytest.raises(exceptions.InvalidParameterException, match=r"^Invalid parameter name: $"):
        node.declare_parameter("", 1)
    with pytest.raises(TypeError, match="First element 3 at index 1 in parameters list is not a str"):
        node.declare_parameters("", [("fine", 1), (3, 1)])
    with pytest.raises(TypeError, match="Invalid parameter tuple length at index 0"):
        node.declare_parameters("", [()])


def test_parameters_are_listed_by_prefix_and_depth(ros: Any) -> None:
    node = ros.create_node("p")
    for name in ("a", "b.c", "b.d.e", "b.d.f.g", "bb.x"):
        node.declare_parameter(name, 1)

    def listed(prefixes: list[str], depth: int) -> list[str]:
        return [name for name in node.list_parameters(prefixes, depth).names if "_" not in name]

    assert listed([], 0) == ["a", "b.c", "b.d.e", "b.d.f.g", "bb.x"]
    assert listed([], 1) == ["a"]
    assert listed(["b"], 1) == ["b.c"]
    assert listed(["b"], 2) == ["b.c", "b.d.e"]
    assert listed(["b.d", "a"], 0) == ["a", "b.d.e", "b.d.f.g"]
    assert node.list_parameters(["b"], 0).prefixes == ["b", "b.d", "b.d.f"]
    for prefixes, depth, error in (
        (("b",), 0, TypeError),
        ([1], 0, TypeError),
        ([], 1.0, TypeError),
        ([], -1, ValueError),
    ):
        with pytest.raises(error):
            node.list_parameters(prefixes, depth)


def test_parameter_values_have_the_types_of_rclpy() -> None:
    from rcl_interfaces.msg import ParameterValue
    from rclpy.parameter import Parameter, parameter_value_to_python

    assert str(Parameter.Type.BOOL) == "Type.BOOL"
    assert pickle.loads(pickle.dumps(Parameter.Type.BOOL)) is Parameter.Type.BOOL  # noqa: S301 (our own bytes)
    assert Parameter("p", value=[1, True]).type_ is Parameter.Type.INTEGER_ARRAY
    assert Parameter("p", value=array.array("d", [1.0])).type_ is Parameter.Type.DOUBLE_ARRAY
    assert Parameter("p", value=[]).type_ is Parameter.Type.BYTE_ARRAY
    received = Parameter.from_parameter_msg(Parameter("p", value=[1, 2]).to_parameter_msg())
    assert received.value == array.array("q", [1, 2])
    with pytest.raises(ValueError, match="do not agree"):
        Parameter("p", Parameter.Type.BYTE_ARRAY, [b"ab"])
    with pytest.raises(RuntimeError, match="unexpected parameter type 42"):
        parameter_value_to_python(ParameterValue(type=42))


def test_messages_of_exceptions() -> None:
    from rclpy import exceptions
    from rclpy.parameter import Parameter

    assert str(exceptions.NotInitializedException()) == "rclpy.init() has not been called."
    assert str(exceptions.NotInitializedException("x")) == "rclpy.init() has not been called. msg:x"
    assert str(exceptions.ParameterNotDeclaredException(["a"])) == "Invalid access to undeclared parameter(s): ['a']"
    assert str(exceptions.ParameterImmutableException("a")) == "Attempted to modify read-only parameter: a"
    assert str(exceptions.InvalidParameterValueException("a", 3, "no")) == (
        "Invalid parameter value (3) for parameter. Reason: no: a"
    )
    assert str(exceptions.InvalidParameterTypeException(Parameter("a", value=1), "STRING")) == (
        "Trying to set parameter 'a' to '1' of type 'INTEGER', expecting type 'STRING': a"
    )
    assert str(exceptions.InvalidTopicNameException("a b", "is wrong", 1)) == (
        "Invalid topic name: is wrong:\n  'a b'\n    ^"
    )


# ---------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("position", [1], "of type 'float'"),  # no int in an assignment
        ("position", array.array("f", [1.0]), "type code 'd'"),
        ("position", np.zeros(2, np.float32), "each value of type 'float64'"),
        ("position", {1.0: 1}, "a set or sequence"),
        ("position", 1.0, "a set or sequence"),
        ("name", "text", "a set or sequence"),
        ("name", [b"x"], "of type 'str'"),
        ("header", None, "a sub message of type 'Header'"),
    ],
)
def test_fields_refuse_other_types(field: str, value: Any, text: str) -> None:
    from sensor_msgs.msg import JointState

    message = JointState()
    with pytest.raises(AssertionError, match=f"The '{field}' field must be .*{text}") as caught:
        setattr(message, field, value)
    assert f"sensor_msgs/msg/JointState.{field} = " in str(caught.value)


def test_fields_accept_what_rclpy_accepts() -> None:
    from diagnostic_msgs.msg import DiagnosticStatus
    from geometry_msgs.msg import Quaternion
    from sensor_msgs.msg import CameraInfo, Image, JointState

    assert JointState(position=[0, 1]).position == array.array("d", [0.0, 1.0])  # a constructor converts numbers
    joints = JointState(name=("a", "b"))
    joints.position = (1.0, math.nan)
    joints.name = {"c"}
    assert joints.name == ["c"]
    info = CameraInfo(k=range(9))
    info.p = np.zeros((3, 4))
    with pytest.raises(AssertionError, match="a numpy array of float64 with a size of 12"):
        info.p = np.zeros((3, 3))
    data = array.array("B", [1, 2])
    image = Image(data=data)
    assert image.data is data
    for value in (b"\x01\x02", bytearray([1, 2]), memoryview(b"\x01\x02"), np.array([[1], [2]], np.uint8), [1, 2]):
        image.data = value
        assert image.data == data
    assert repr(image).endswith("data=[1, 2])")
    assert Quaternion.W__DEFAULT == 1.0
    with pytest.raises(AssertionError, match="'bytes' or 'ByteString' with length 1"):
        DiagnosticStatus(level=b"ab")


# ---------------------------------------------------------------------------------------------------------- executors


def test_tasks_and_coroutines_run_while_spinning(ros: Any, spin_until: Callable[..., None]) -> None:
    from rclpy.callback_groups import ReentrantCallbackGroup
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.task import Future
    from std_srvs.srv import SetBool

    node = ros.create_node("tasks")
    group = ReentrantCallbackGroup()
    client = node.create_client(SetBool, "slow", callback_group=group)
    gate = Future()
    steps: list[str] = []

    async def serve(request: Any, response: Any) -> Any:
        steps.append("serving")
        response.message = await gate
        return response

    async def call() -> str:
        steps.append("calling")
        await asyncio.sleep(0)
        response = await client.call_async(SetBool.Request())
        return response.message

    node.create_service(SetBool, "slow", serve, callback_group=group)
    assert client.wait_for_service(WAIT_S)
    with SingleThreadedExecutor() as executor:
        executor.add_node(node)
        task = executor.create_task(call)
        plain = executor.create_task(lambda left, right: left + right, 1, right=2)
        while steps != ["calling", "serving"]:
            executor.spin_once(WAIT_S)
        assert plain.result() == 3
        gate.set_result("answered")
        executor.spin_until_future_complete(task, WAIT_S)
        assert task.result() == "answered"

        def fail() -> None:
            raise KeyError("from the task")

        executor.create_task(fail)
        with pytest.raises(KeyError, match="from the task"):
            executor.spin_once(WAIT_S)
    executor.spin_once(0.0)  # it was shut down: nothing happens


def test_a_coroutine_keeps_its_group_until_it_ends(ros: Any) -> None:
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.task import Future

    node = ros.create_node("holds")
    gate, entered, ticks = Future(), [], []

    async def hold() -> None:
        entered.append(True)
        timer.cancel()
        await gate

    timer = node.create_timer(0.001, hold)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    while not entered:
        executor.spin_once(WAIT_S)
    node.create_timer(0.001, lambda: ticks.append(True))
    assert not node.default_callback_group.can_execute(timer)
    executor.spin_once(0.05)
    assert not ticks
    gate.set_result(None)
    while not ticks:
        executor.spin_once(WAIT_S)


def test_done_callbacks_run_in_the_futures_executor(ros: Any) -> None:
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.task import Future

    executor = SingleThreadedExecutor()
    future, called_with = Future(executor=executor), []
    future.add_done_callback(called_with.append)
    future.set_result(0)  # a false value is a result, too
    assert not called_with
    executor.spin_once(WAIT_S)
    assert called_with == [future]
    assert future.result() == 0
    failing = Future()
    failing.add_done_callback(lambda _: 1 / 0)
    with pytest.warns(UserWarning, match="Unhandled exception in done callback: division by zero"):
        failing.set_result(None)
    cancelled = Future()
    cancelled.cancel()
    assert (cancelled.cancelled(), cancelled.done()) == (True, False)


def test_a_spin_ends_with_the_future(ros: Any) -> None:
    from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
    from rclpy.task import Future

    node = ros.create_node("waits")
    for executor in (SingleThreadedExecutor(), MultiThreadedExecutor(2)):
        executor.add_node(node)
        future = Future()
        other = threading.Thread(target=future.set_result, args=(1,))
        other.start()
        executor.spin_once_until_future_complete(future, WAIT_S)
        other.join()
        executor.spin_once_until_future_complete(future, WAIT_S)  # returns immediately
        assert future.result() == 1
        executor.shutdown()
    with pytest.warns(UserWarning, match="with a single thread"):
        MultiThreadedExecutor(1).shutdown()


def test_a_spin_with_a_timeout_of_zero_runs_a_ready_callback(ros: Any) -> None:
    from rclpy.task import Future

    node = ros.create_node("polls")
    future = Future()
    guard = node.create_guard_condition(lambda: future.set_result(1))
    ros.spin_until_future_complete(node, future, timeout_sec=0.0)
    assert not future.done()
    guard.trigger()
    ros.spin_until_future_complete(node, future, timeout_sec=0.0)
    assert future.result() == 1


def test_a_long_spin_adds_one_callback_to_its_future(ros: Any) -> None:
    from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
    from rclpy.task import Future

    class Counting(Future):
        added = 0

        def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
            self.added += 1
            super().add_done_callback(callback)

    for executor in (SingleThreadedExecutor(), MultiThreadedExecutor(2)):
        node = ros.create_node("ticks")
        executor.add_node(node)
        future, ticks = Counting(), []

        def tick(future: Any = future, ticks: list[int] = ticks) -> None:
            ticks.append(len(ticks))
            if len(ticks) == 20:
                future.set_result(None)

        node.create_timer(0.001, tick)
        executor.spin_until_future_complete(future, WAIT_S)
        assert future.done()
        assert future.added == 1
        executor.shutdown()
        node.destroy_node()


def test_a_call_that_takes_too_long_returns_none(ros: Any) -> None:
    from std_srvs.srv import Empty

    node = ros.create_node("calls")
    client = node.create_client(Empty, "nobody")
    assert client.call(Empty.Request(), timeout_sec=0.01) is None


# ----------------------------------------------------------------------------------------------------- time and logs


def test_sleeping_under_simulated_time(ros: Any) -> None:
    from rclpy.clock import Clock, ClockType, ROSClock
    from rclpy.duration import Duration
    from rclpy.exceptions import NotInitializedException
    from rclpy.time import Time

    clock = ROSClock()
    clock._set_ros_time_is_active(True)
    results: list[bool] = []

    def sleeps_until(seconds: int, then: Callable[[], None]) -> bool:
        until = Time(seconds=seconds, clock_type=ClockType.ROS_TIME)
        sleeper = threading.Thread(target=lambda: results.append(clock.sleep_until(until)))
        sleeper.start()
        while sleeper.is_alive():
            then()
            sleeper.join(0.01)
        return results.pop()

    def at(seconds: int) -> Callable[[], None]:
        return lambda: clock.set_ros_time_override(Time(seconds=seconds, clock_type=ClockType.ROS_TIME))

    assert sleeps_until(10, at(10))
    assert not sleeps_until(20, lambda: clock._set_ros_time_is_active(not clock.ros_time_is_active))
    with pytest.raises(ValueError, match="clock type does not match this clock's type"):
        clock.sleep_until(Time(clock_type=ClockType.STEADY_TIME))
    assert Clock(clock_type=ClockType.STEADY_TIME).sleep_for(Duration(nanoseconds=1))
    ros.shutdown()
    with pytest.raises(NotInitializedException):
        clock.sleep_for(Duration(seconds=1))


def test_clock_jumps_call_back_before_and_after() -> None:
    from rclpy.clock import ClockChange, ClockType, JumpThreshold, ROSClock
    from rclpy.duration import Duration
    from rclpy.time import Time

    clock = ROSClock()
    calls: list[Any] = []
    threshold = JumpThreshold(min_forward=Duration(seconds=5), min_backward=Duration(seconds=-1), on_clock_change=True)
    handle = clock.create_jump_callback(
        threshold,
        pre_callback=lambda: calls.append(clock.now().nanoseconds // 10**9),
        post_callback=lambda jump: calls.append((jump.clock_change, jump.delta.nanoseconds // 10**9)),
    )

    def move(seconds: int) -> list[Any]:
        calls.clear()
        clock.set_ros_time_override(Time(seconds=seconds, clock_type=ClockType.ROS_TIME))
        return list(calls)

    assert move(100) == []  # time is not simulated yet
    clock._set_ros_time_is_active(True)
    assert calls[1:] == [(ClockChange.ROS_TIME_ACTIVATED, 0)]
    assert move(104) == []
    assert move(110) == [104, (ClockChange.ROS_TIME_NO_CHANGE, 6)]
    assert move(109) == [110, (ClockChange.ROS_TIME_NO_CHANGE, -1)]
    handle.unregister()
    assert move(10) == []
    with pytest.raises(ValueError, match="At least one jump threshold"):
        JumpThreshold(min_forward=None, min_backward=None, on_clock_change=False)


def test_a_call_site_keeps_its_logging_options() -> None:
    from rclpy.logging import get_logger

    logger = get_logger("call_sites")

    def log_with(method: Callable[[str], bool]) -> None:
        method("text")

    def log_info(logger: Any, options: dict[str, Any]) -> None:
        logger.info("text", **options)

    log_with(logger.info)
    log_with(logger.info)
    with pytest.raises(ValueError, match=r"severity cannot be changed between calls: INFO, then WARN .*a call for"):
        log_with(logger.warning)
    for first, second, text in (
        ({"name": "a"}, {"name": "b"}, "name cannot be changed"),
        ({"once": True}, {"skip_first": True}, "filters cannot be changed"),
        ({"throttle_duration_sec": 1.0}, {"throttle_duration_sec": 2.0}, "parameters cannot be changed"),
    ):
        log_info(get_logger("call_sites"), {})
        changing = get_logger("call_sites")
        log_info(changing, first)
        with pytest.raises(ValueError, match=text):
            log_info(changing, second)
    with pytest.raises(TypeError, match='parameter "twice" is not one of the recognized'):
        logger.info("text", twice=True)
    with pytest.raises(TypeError, match=r'required parameter "throttle_duration_sec" not specified'):
        logger.info("text", throttle_time_source_type=object())
    with pytest.raises(ValueError, match="is not a clock instance"):
        logger.info("text", throttle_duration_sec=1.0, throttle_time_source_type="steady")
    with pytest.raises(TypeError, match="must be a str, not 3"):
        logger.info(3)
    assert not logger.debug(3)  # not checked, because DEBUG does not pass


def test_severities_and_the_root_logger() -> None:
    import rclpy.logging
    from rclpy.logging import LoggingSeverity

    child = rclpy.logging.get_logger("of_the_root")
    try:
        rclpy.logging._root_logger.set_level(LoggingSeverity.ERROR)
        assert child.get_effective_level() is LoggingSeverity.ERROR
        assert rclpy.logging.get_logger_level("") is LoggingSeverity.ERROR
        child.set_level(LoggingSeverity.DEBUG)
    finally:
        rclpy.logging.clear_config()
    assert child.get_effective_level() is LoggingSeverity.INFO
    assert rclpy.logging.get_logging_severity_from_string("warn") is LoggingSeverity.WARN
    with pytest.raises(RuntimeError, match="'loud'; it must be one of UNSET, DEBUG"):
        rclpy.logging.get_logging_severity_from_string("loud")
    with pytest.raises(ValueError, match="35 is not a valid LoggingSeverity"):
        child.set_level(35)
    with pytest.raises(ValueError, match="Logger name must not be empty"):
        rclpy.logging.get_logger("")


def test_a_replaced_name_of_a_module_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    import rclpy.logging

    class Root:
        def get_child(self, name: str) -> str:
            return f"child {name}"

    before = rclpy.logging._root_logger
    with monkeypatch.context() as patch:
        patch.setattr(rclpy.logging, "_root_logger", Root())
        assert rclpy.logging.get_logger("x") == "child x"
    assert rclpy.logging._root_logger is before
    with mock.patch("rclpy.logging._root_logger", Root()):
        assert rclpy.logging.get_logger("x") == "child x"
    assert rclpy.logging.get_logger("x").name == "x"


def test_init_refuses_what_rclpy_refuses() -> None:
    import rclpy
    from rclpy.context import Context

    with pytest.raises(RuntimeError, match=r"Domain id \(-1\) should not be lower than zero"):
        rclpy.init(args=[], domain_id=-1, context=Context())
    with pytest.raises(UnicodeEncodeError):
        rclpy.init(args=["Ragnar\udcc3\udcb6k"], context=Context())
    with pytest.raises(RuntimeError, match="must be initialized before it can have a domain id"):
        Context().get_domain_id()
