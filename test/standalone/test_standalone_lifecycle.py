"""Managed nodes: every transition, error processing, and publishers that send only while active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from multi_dnn_ros.standalone import state_machine
from multi_dnn_ros.standalone.errors import RCLError
from multi_dnn_ros.standalone.state_machine import StateMachine, TransitionCallbackReturn


@pytest.fixture
def make_node(ros: Any) -> Callable[..., Any]:
    """`make_node(outcomes)`: a managed node whose callbacks return or raise the given outcomes."""
    from rclpy.lifecycle import LifecycleNode

    class Managed(LifecycleNode):
        def __init__(self, outcomes: dict[str, Any]) -> None:
            super().__init__("managed")
            self.outcomes = outcomes
            self.calls: list[tuple[str, str]] = []

        def _pass_on(self, name: str, state: Any) -> Any:
            self.calls.append((name, state.label))
            outcome = self.outcomes.get(name)
            if isinstance(outcome, Exception):
                raise outcome
            return super()._pass_on(name, state) if outcome is None else outcome

    return lambda **outcomes: Managed(outcomes)


def test_the_complete_life_cycle_twice(make_node: Callable[..., Any]) -> None:
    node = make_node()
    for _ in range(2):
        for trigger, label in (
            (node.trigger_configure, "inactive"),
            (node.trigger_activate, "active"),
            (node.trigger_deactivate, "inactive"),
            (node.trigger_cleanup, "unconfigured"),
        ):
            assert trigger() is TransitionCallbackReturn.SUCCESS
            assert node._machine.state.label == label
    assert node.trigger_shutdown() is TransitionCallbackReturn.SUCCESS
    assert node._machine.state.label == "finalized"
    assert node.calls[:2] == [("on_configure", "unconfigured"), ("on_activate", "inactive")]
    with pytest.raises(RCLError, match="'configure' is not allowed in state 'finalized'; allowed: none"):
        node.trigger_configure()


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ({"on_configure": TransitionCallbackReturn.FAILURE}, "unconfigured"),
        ({"on_configure": TransitionCallbackReturn.ERROR}, "unconfigured"),
        ({"on_configure": ValueError("bad parameter")}, "unconfigured"),
        ({"on_configure": "not an outcome"}, "unconfigured"),
        ({"on_configure": TransitionCallbackReturn.ERROR, "on_error": TransitionCallbackReturn.FAILURE}, "finalized"),
        ({"on_configure": TransitionCallbackReturn.ERROR, "on_error": RuntimeError("again")}, "finalized"),
    ],
)
def test_failures_and_errors(
    make_node: Callable[..., Any], outcomes: dict[str, Any], state: str, capfd: pytest.CaptureFixture[str]
) -> None:
    node = make_node(**outcomes)
    assert node.trigger_configure() is not TransitionCallbackReturn.SUCCESS
    assert node._machine.state.label == state
    if isinstance(outcomes["on_configure"], ValueError):
        assert "bad parameter" in capfd.readouterr().err


def test_every_transition_has_its_number_and_label() -> None:
    from lifecycle_msgs.msg import State, Transition

    numbers = {entry.transition_id for entry in state_machine.TRANSITIONS}
    known = {
        getattr(Transition, name)
        for name in vars(Transition)
        if name.startswith("TRANSITION_")
        and "CALLBACK" not in name
        and name not in ("TRANSITION_CREATE", "TRANSITION_DESTROY")
    }
    assert numbers == known
    assert {entry.state_id for entry in state_machine.STATES} == {
        getattr(State, name) for name in vars(State) if name.startswith(("PRIMARY_STATE", "TRANSITION_STATE"))
    }
    machine = StateMachine()
    assert [entry.label for entry in machine.available()] == ["configure", "shutdown"]


def test_a_lifecycle_publisher_is_silent_while_inactive(
    make_node: Callable[..., Any], spin_until: Callable[..., None]
) -> None:
    from std_msgs.msg import String

    node = make_node()
    publisher = node.create_lifecycle_publisher(String, "out", 10)
    got: list[str] = []
    node.create_subscription(String, "out", lambda message: got.append(message.data), 10)
    spin_until(node, lambda: publisher.get_subscription_count() == 1)
    publisher.publish(String(data="unconfigured"))
    node.trigger_configure()
    publisher.publish(String(data="inactive"))
    node.trigger_activate()
    publisher.publish(String(data="active"))
    node.trigger_deactivate()
    publisher.publish(String(data="inactive again"))
    node.trigger_activate()
    publisher.publish(String(data="last"))
    spin_until(node, lambda: "last" in got)
    assert got == ["active", "last"]
    assert node.destroy_lifecycle_publisher(publisher)


def test_services_and_events(make_node: Callable[..., Any], ros: Any, spin_until: Callable[..., None]) -> None:
    from lifecycle_msgs.msg import Transition, TransitionEvent
    from lifecycle_msgs.srv import ChangeState, GetAvailableStates, GetAvailableTransitions, GetState

    node = make_node()
    events: list[str] = []
    node.create_subscription(
        TransitionEvent, "managed/transition_event", lambda event: events.append(event.goal_state.label), 10
    )

    def call(srv_type: Any, name: str, request: Any) -> Any:
        client = node.create_client(srv_type, f"managed/{name}")
        assert client.wait_for_service(30.0)
        future = client.call_async(request)
        ros.spin_until_future_complete(node, future, timeout_sec=30.0)
        node.destroy_client(client)
        return future.result()

    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    assert call(ChangeState, "change_state", request).success
    assert not call(ChangeState, "change_state", request).success
    assert call(ChangeState, "change_state", ChangeState.Request(transition=Transition(label="activate"))).success
    assert call(GetState, "get_state", GetState.Request()).current_state.label == "active"
    assert len(call(GetAvailableStates, "get_available_states", GetAvailableStates.Request()).available_states) == 11
    available = call(GetAvailableTransitions, "get_available_transitions", GetAvailableTransitions.Request())
    assert [entry.transition.label for entry in available.available_transitions] == ["deactivate", "shutdown"]
    graph = call(GetAvailableTransitions, "get_transition_graph", GetAvailableTransitions.Request())
    assert len(graph.available_transitions) == len(state_machine.TRANSITIONS)
    spin_until(node, lambda: len(events) == 4)
    assert events == ["configuring", "inactive", "activating", "active"]
