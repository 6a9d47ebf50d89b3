"""Managed nodes: life cycle callbacks, services and events, and publishers that send only while active."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from multi_dnn_ros.standalone import state_machine
from multi_dnn_ros.standalone.callback_groups import CallbackGroup
from multi_dnn_ros.standalone.errors import RCLError
from multi_dnn_ros.standalone.messages import Message, message_class, service_class
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.node import Node as PlainNode
from multi_dnn_ros.standalone.qos import QoSProfile
from multi_dnn_ros.standalone.state_machine import LifecycleState, StateMachine, Transition, TransitionCallbackReturn
from multi_dnn_ros.standalone.topics import Publisher

_EVENT_QOS: Final = QoSProfile(depth=10)
_SUCCESS: Final = TransitionCallbackReturn.SUCCESS


class ManagedEntity(Surface):
    """Follows a node's life cycle: each callback of the node calls the same callback of its managed entities."""

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return SUCCESS."""
        return _SUCCESS


class SimpleManagedEntity(ManagedEntity):
    """A managed entity that tracks whether it is active."""

    def __init__(self) -> None:
        self._enabled = False

    @property
    def is_activated(self) -> bool:
        """Whether the node is active."""
        return self._enabled

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Become active."""
        self._enabled = True
        return _SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Become inactive."""
        self._enabled = False
        return _SUCCESS


class LifecyclePublisher(SimpleManagedEntity, Publisher):
    """A publisher that drops messages while its node is not active."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        SimpleManagedEntity.__init__(self)
        Publisher.__init__(self, *args, **kwargs)

    def publish(self, msg: Message | bytes) -> None:
        """Send a message if the node is active."""
        if self._enabled:
            Publisher.publish(self, msg)


class LifecycleNodeMixin(ManagedEntity):
    """The life cycle for a node class that also inherits from `rclpy.node.Node`;
    :class:`LifecycleNode` combines both.
    """

    def __init__(
        self, *, enable_communication_interface: bool = True, callback_group: CallbackGroup | None = None
    ) -> None:
        """Start unconfigured; offer the services and the event topic unless disabled."""
        self._machine = StateMachine()
        self._machine_lock = threading.RLock()
        self._managed_entities: set[ManagedEntity] = set()
        self._transition_event: Publisher | None = None
        if enable_communication_interface:
            self._offer_services(callback_group)

    def _offer_services(self, callback_group: CallbackGroup | None) -> None:
        node: Any = self
        event = message_class("lifecycle_msgs/msg/TransitionEvent")
        self._transition_event = PlainNode.create_publisher(node, event, "~/transition_event", _EVENT_QOS)
        for name, kind, callback in (
            ("change_state", "ChangeState", self._on_change_state),
            ("get_state", "GetState", self._on_get_state),
            ("get_available_states", "GetAvailableStates", self._on_get_available_states),
            ("get_available_transitions", "GetAvailableTransitions", self._on_get_available_transitions),
            ("get_transition_graph", "GetAvailableTransitions", self._on_get_transition_graph),
        ):
            srv_type = service_class(f"lifecycle_msgs/srv/{kind}")
            PlainNode.create_service(node, srv_type, f"~/{name}", callback, callback_group=callback_group)

    # ----------------------------------------------------------------------------------------------------- callbacks

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Configure the managed entities."""
        return self._pass_on("on_configure", state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Clean up the managed entities."""
        return self._pass_on("on_cleanup", state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Shut down the managed entities."""
        return self._pass_on("on_shutdown", state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Activate the managed entities."""
        return self._pass_on("on_activate", state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Deactivate the managed entities."""
        return self._pass_on("on_deactivate", state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let the managed entities handle the error."""
        return self._pass_on("on_error", state)

    def _pass_on(self, name: str, state: LifecycleState) -> TransitionCallbackReturn:
        for entity in list(self._managed_entities):
            outcome = getattr(entity, name)(state)
            if not isinstance(outcome, TransitionCallbackReturn):
                raise TypeError(f"{name}() of {entity!r} must return a TransitionCallbackReturn, not {outcome!r}")
            if outcome is not _SUCCESS:
                return outcome
        return _SUCCESS

    def add_managed_entity(self, entity: ManagedEntity) -> None:
        """Make an entity follow this node's life cycle."""
        if not isinstance(entity, ManagedEntity):
            raise TypeError(f"a rclpy.lifecycle.ManagedEntity is expected, not {entity!r}")
        self._managed_entities.add(entity)

    def create_lifecycle_publisher(self, *args: Any, **kwargs: Any) -> LifecyclePublisher:
        """Create a publisher that sends only while the node is active; arguments as for `create_publisher`."""
        if "publisher_class" in kwargs:
            raise TypeError("create_lifecycle_publisher() takes no publisher_class")
        node: Any = self
        publisher = PlainNode.create_publisher(node, *args, **kwargs, publisher_class=LifecyclePublisher)
        assert isinstance(publisher, LifecyclePublisher)
        self._managed_entities.add(publisher)
        return publisher

    def destroy_lifecycle_publisher(self, publisher: LifecyclePublisher) -> bool:
        """Destroy a publisher; return whether it belonged to this node."""
        self._managed_entities.discard(publisher)
        node: Any = self
        return PlainNode.destroy_publisher(node, publisher)

    # --------------------------------------------------------------------------------------------------- transitions

    def trigger_configure(self) -> TransitionCallbackReturn:
        """Go from unconfigured to inactive."""
        return self._change_state("configure")

    def trigger_cleanup(self) -> TransitionCallbackReturn:
        """Go from inactive to unconfigured."""
        return self._change_state("cleanup")

    def trigger_activate(self) -> TransitionCallbackReturn:
        """Go from inactive to active."""
        return self._change_state("activate")

    def trigger_deactivate(self) -> TransitionCallbackReturn:
        """Go from active to inactive."""
        return self._change_state("deactivate")

    def trigger_shutdown(self) -> TransitionCallbackReturn:
        """Go from any primary state to finalized."""
        return self._change_state("shutdown")

    def _change_state(self, key: int | str) -> TransitionCallbackReturn:
        with self._machine_lock:
            before = self._machine.state
            self._trigger(key)
            outcome = self._run_callback(before)
            self._trigger(outcome.to_label())
            if outcome is TransitionCallbackReturn.ERROR:
                self._trigger(self._run_callback(before).to_label())
            return outcome

    def _trigger(self, key: int | str) -> None:
        transition = self._machine.trigger(key)
        if self._transition_event is not None and not self._transition_event.writer.closed:
            event = message_class("lifecycle_msgs/msg/TransitionEvent")
            message = _describe(transition, event(timestamp=time.time_ns()))
            self._transition_event.publish(message)

    def _run_callback(self, before: LifecycleState) -> TransitionCallbackReturn:
        callbacks: dict[LifecycleState, Callable[[LifecycleState], TransitionCallbackReturn]] = {
            state_machine.CONFIGURING: self.on_configure,
            state_machine.CLEANINGUP: self.on_cleanup,
            state_machine.SHUTTINGDOWN: self.on_shutdown,
            state_machine.ACTIVATING: self.on_activate,
            state_machine.DEACTIVATING: self.on_deactivate,
            state_machine.ERRORPROCESSING: self.on_error,
        }
        label = self._machine.state.label
        node: Any = self
        try:
            outcome = callbacks[self._machine.state](before)
        except Exception:
            # rclpy treats an exception as ERROR without logging it; log the reason.
            node.get_logger().error(f"the callback of state {label!r} raised:\n{traceback.format_exc()}")
            return TransitionCallbackReturn.ERROR
        if not isinstance(outcome, TransitionCallbackReturn):
            node.get_logger().error(
                f"the callback of state {label!r} must return a TransitionCallbackReturn: {outcome!r}"
            )
            return TransitionCallbackReturn.ERROR
        return outcome

    # ------------------------------------------------------------------------------------------------------ services

    def _on_change_state(self, request: Any, response: Any) -> Any:
        wanted = request.transition.label or request.transition.id
        node: Any = self
        with self._machine_lock:
            try:
                response.success = self._change_state(wanted) is _SUCCESS
            except RCLError as error:
                node.get_logger().error(f"change_state rejected: {error}")
                response.success = False
        return response

    def _on_get_state(self, request: Any, response: Any) -> Any:
        state = self._machine.state
        response.current_state = message_class("lifecycle_msgs/msg/State")(id=state.state_id, label=state.label)
        return response

    def _on_get_available_states(self, request: Any, response: Any) -> Any:
        state = message_class("lifecycle_msgs/msg/State")
        response.available_states = [state(id=entry.state_id, label=entry.label) for entry in state_machine.STATES]
        return response

    def _on_get_available_transitions(self, request: Any, response: Any) -> Any:
        response.available_transitions = _descriptions(self._machine.available())
        return response

    def _on_get_transition_graph(self, request: Any, response: Any) -> Any:
        response.available_transitions = _descriptions(list(state_machine.TRANSITIONS))
        return response


class LifecycleNode(LifecycleNodeMixin, PlainNode):
    """A managed node."""

    def __init__(self, node_name: str, *, enable_communication_interface: bool = True, **kwargs: Any) -> None:
        PlainNode.__init__(self, node_name, **kwargs)
        LifecycleNodeMixin.__init__(self, enable_communication_interface=enable_communication_interface)


Node = LifecycleNode
NodeMixin = LifecycleNodeMixin
State = LifecycleState


def _describe(transition: Transition, message: Any) -> Any:
    message.transition.id, message.transition.label = transition.transition_id, transition.label
    message.start_state.id, message.start_state.label = transition.start.state_id, transition.start.label
    message.goal_state.id, message.goal_state.label = transition.goal.state_id, transition.goal.label
    return message


def _descriptions(transitions: list[Transition]) -> list[Any]:
    description = message_class("lifecycle_msgs/msg/TransitionDescription")
    return [_describe(transition, description()) for transition in transitions]
