"""The node: creates publishers, subscriptions, services, clients and timers, and owns the parameters."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from multi_dnn_ros.standalone import logs, names
from multi_dnn_ros.standalone.arguments import ROS_ARGS, Arguments, parse
from multi_dnn_ros.standalone.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from multi_dnn_ros.standalone.clock import Clock, ROSClock
from multi_dnn_ros.standalone.context import Context, get_default_context
from multi_dnn_ros.standalone.dds import Participant, Reader, Writer
from multi_dnn_ros.standalone.entities import GuardCondition, Timer, Waitable, period_ns
from multi_dnn_ros.standalone.errors import InvalidHandle, NameValidationException, NotInitializedException, RCLError
from multi_dnn_ros.standalone.graph import NodeEntry
from multi_dnn_ros.standalone.messages import Message, message_class
from multi_dnn_ros.standalone.messages import Service as ServiceType
from multi_dnn_ros.standalone.missing import missing, refuse
from multi_dnn_ros.standalone.node_graph import NodeGraph
from multi_dnn_ros.standalone.node_parameters import NodeParameters
from multi_dnn_ros.standalone.parameter_services import ParameterServices
from multi_dnn_ros.standalone.parameters import RELATIVE_TOLERANCE, Parameter
from multi_dnn_ros.standalone.qos import (
    QoSProfile,
    profile_of,
    qos_profile_parameter_events,
    qos_profile_rosout_default,
    qos_profile_services_default,
)
from multi_dnn_ros.standalone.qos_events import IncompatibleQos
from multi_dnn_ros.standalone.rosout import Rosout
from multi_dnn_ros.standalone.services import Client, Service
from multi_dnn_ros.standalone.time_source import TimeSource
from multi_dnn_ros.standalone.topics import Publisher, Subscription, check_callback, check_message_type
from multi_dnn_ros.standalone.type_description import declare_type_description


class Node(NodeGraph, NodeParameters):
    """A ROS node."""

    PARAM_REL_TOL = RELATIVE_TOLERANCE

    def __init__(
        self,
        node_name: str,
        *,
        context: Context | None = None,
        cli_args: Sequence[str] | None = None,
        namespace: str | None = None,
        use_global_arguments: bool = True,
        enable_rosout: bool = True,
        start_parameter_services: bool = True,
        parameter_overrides: Sequence[Parameter] | None = None,
        allow_undeclared_parameters: bool = False,
        automatically_declare_parameters_from_overrides: bool = False,
        enable_logger_service: bool = False,
    ) -> None:
        """Create a node; see rclpy for the arguments.

        Raises:
            NotInitializedException: before `rclpy.init()`.
            InvalidNodeNameException, InvalidNamespaceException: for an invalid name.
        """
        refuse("Node", enable_logger_service=enable_logger_service or None)
        self._context = context or get_default_context()
        if not self._context.ok():
            raise NotInitializedException("cannot create node")
        local = parse([ROS_ARGS, *(cli_args or ())])
        shared = self._context.arguments if use_global_arguments else Arguments()
        self._remaps = [*local.remaps, *shared.remaps]
        namespace = namespace or "/"
        namespace = namespace if namespace.startswith("/") else f"/{namespace}"
        names.validate_node_name(node_name)
        names.validate_namespace(namespace)
        self._name, self._namespace = names.remap_node(self._remaps, node_name, namespace)
        self._entry = NodeEntry(self._name, self._namespace)
        self._entities_lock = threading.RLock()
        self._endpoints: list[Any] = []  # publishers, subscriptions, services, clients
        self._others: list[Waitable] = []  # timers and guard conditions
        self._events: dict[Any, IncompatibleQos] = {}  # by publisher or subscription
        self._waitables: tuple[Waitable, ...] = ()
        self._executor: Callable[[], Any] = _no_executor
        self._destroyed = False
        self._default_callback_group = MutuallyExclusiveCallbackGroup()
        self._clock = ROSClock()
        self._logger = logs.get_logger(self.get_fully_qualified_name()[1:].replace("/", "."))
        self._context.add_node(self)
        self._context.graph.add_node(self._entry)
        try:
            self._rosout: Rosout | None = None
            if enable_rosout and shared.rosout and local.rosout:
                log = message_class("rcl_interfaces/msg/Log")
                self._rosout = Rosout(
                    self._logger.name, self._create_publisher(log, "/rosout", qos_profile_rosout_default)
                )
            event = message_class("rcl_interfaces/msg/ParameterEvent")
            events = self._create_publisher(event, "/parameter_events", qos_profile_parameter_events)
            NodeParameters.__init__(
                self, self._clock, events, self.get_fully_qualified_name(), allow_undeclared=allow_undeclared_parameters
            )
            for arguments in (shared, local):
                for name, value in arguments.overrides_for(self.get_fully_qualified_name()).items():
                    self._parameter_overrides[name] = Parameter(name, value=value)
            self._parameter_overrides.update({entry.name: entry for entry in parameter_overrides or ()})
            if automatically_declare_parameters_from_overrides:
                overrides = [(entry.name, entry.value) for entry in self._parameter_overrides.values()]
                self.declare_parameters("", overrides, ignore_override=True)
            self._time_source = TimeSource(self, self._clock)
            if start_parameter_services:
                ParameterServices(self)
            declare_type_description(self)
        except BaseException:
            self.destroy_node()
            raise

    # --------------------------------------------------------------------------------------------------------- names

    def get_name(self) -> str:
        """Return the node's own name."""
        return self._name

    def get_namespace(self) -> str:
        """Return the namespace."""
        return self._namespace

    def get_fully_qualified_name(self) -> str:
        """Return namespace and name."""
        return names.qualified(self._namespace, self._name)

    def resolve_topic_name(self, topic: str, *, only_expand: bool = False) -> str:
        """Return the absolute name of a topic, remapped unless `only_expand`.

        Raises:
            RCLError: for an invalid name; says why.
        """
        return self._resolve(topic, only_expand=only_expand, service=False)

    def resolve_service_name(self, service: str, *, only_expand: bool = False) -> str:
        """Return the absolute name of a service, remapped unless `only_expand`.

        Raises:
            RCLError: for an invalid name; says why.
        """
        return self._resolve(service, only_expand=only_expand, service=True)

    def _resolve(self, name: str, *, only_expand: bool, service: bool) -> str:
        try:
            return self._remapped(name, service=service, rules=() if only_expand else self._remaps)
        except (NameValidationException, ValueError) as error:
            raise RCLError(f"failed to resolve name: {error}") from error

    def _remapped(self, name: str, *, service: bool = False, rules: Sequence[names.RemapRule] | None = None) -> str:
        rules = self._remaps if rules is None else rules
        return names.remap(rules, name, self._name, self._namespace, service=service)

    def get_logger(self) -> logs.RcutilsLogger:
        """Return the node's logger."""
        return self._logger

    def get_clock(self) -> Clock:
        """Return the node's ROS clock."""
        return self._clock

    @property
    def context(self) -> Context:
        """The context the node belongs to."""
        return self._context

    @property
    def handle(self) -> Any:
        """The C object of rclpy's nodes, which does not exist here."""
        raise AttributeError(missing("Node.handle"), name="handle", obj=self)

    @handle.setter
    def handle(self, value: Any) -> None:
        raise AttributeError("handle cannot be modified after node creation")

    @property
    def default_callback_group(self) -> CallbackGroup:
        """The group of entities created without one: one callback at a time."""
        return self._default_callback_group

    # ------------------------------------------------------------------------------------------------------ entities

    def create_publisher(
        self,
        msg_type: type[Message],
        topic: str,
        qos_profile: QoSProfile | int,
        *,
        callback_group: CallbackGroup | None = None,
        event_callbacks: Any = None,
        qos_overriding_options: Any = None,
        publisher_class: type[Publisher] = Publisher,
    ) -> Publisher:
        """Create a publisher.

        Raises:
            TypeError, InvalidTopicNameException, UnsupportedError: for an invalid argument.
        """
        refuse("create_publisher", event_callbacks=event_callbacks, qos_overriding_options=qos_overriding_options)
        return self._create_publisher(msg_type, topic, qos_profile, callback_group, publisher_class)

    def _create_publisher(
        self,
        msg_type: type[Message],
        topic: str,
        qos_profile: QoSProfile | int,
        callback_group: CallbackGroup | None = None,
        publisher_class: type[Publisher] = Publisher,
    ) -> Publisher:
        qos, absolute = profile_of(qos_profile), self._remapped(topic)
        publisher = publisher_class(self._participant, check_message_type(msg_type), topic, qos, absolute)
        self._add(publisher, publisher.writer)
        self._warn_of_qos(publisher, publisher.writer, callback_group)
        return publisher

    def _warn_of_qos(self, entity: Any, endpoint: Reader | Writer, callback_group: CallbackGroup | None) -> None:
        """Log a warning when an endpoint with incompatible QoS is discovered while this node is spun."""
        group, warn = callback_group or self._default_callback_group, logs.get_logger(self._logger.name).warn
        event = IncompatibleQos(endpoint, group, entity.topic, warn)
        with self._entities_lock:
            self._events[entity] = event
        self._add(event)

    def create_subscription(
        self,
        msg_type: type[Message],
        topic: str,
        callback: Callable[..., Any],
        qos_profile: QoSProfile | int,
        *,
        callback_group: CallbackGroup | None = None,
        event_callbacks: Any = None,
        qos_overriding_options: Any = None,
        raw: bool = False,
    ) -> Subscription:
        """Create a subscription; `callback(message)` or `callback(message, info)`.

        Raises:
            TypeError, InvalidTopicNameException, UnsupportedError: for an invalid argument.
        """
        refuse("create_subscription", event_callbacks=event_callbacks, qos_overriding_options=qos_overriding_options)
        qos, absolute = profile_of(qos_profile), self._remapped(topic)
        group = callback_group or self._default_callback_group
        subscription = Subscription(
            self._participant, check_message_type(msg_type), topic, callback, group, qos, raw, absolute
        )
        self._add(subscription, subscription.reader)
        self._warn_of_qos(subscription, subscription.reader, group)
        return subscription

    def create_service(
        self,
        srv_type: type[ServiceType],
        srv_name: str,
        callback: Callable[[Any, Any], Any],
        *,
        qos_profile: QoSProfile = qos_profile_services_default,
        callback_group: CallbackGroup | None = None,
    ) -> Service:
        """Create a service; `callback(request, response)` returns the response."""
        absolute, group = self._remapped(srv_name, service=True), callback_group or self._default_callback_group
        service = Service(self._participant, srv_type, srv_name, callback, group, qos_profile, absolute)
        self._add(service, service.reader, service.writer)
        return service

    def create_client(
        self,
        srv_type: type[ServiceType],
        srv_name: str,
        *,
        qos_profile: QoSProfile = qos_profile_services_default,
        callback_group: CallbackGroup | None = None,
    ) -> Client:
        """Create a service client."""
        absolute, group = self._remapped(srv_name, service=True), callback_group or self._default_callback_group
        client = Client(self._participant, srv_type, srv_name, group, qos_profile, absolute, self._context)
        self._add(client, client.reader, client.writer)
        return client

    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[[], Any] | None,
        callback_group: CallbackGroup | None = None,
        clock: Clock | None = None,
        autostart: bool = True,
    ) -> Timer:
        """Create a timer on the node's clock, or on another."""
        check_callback(callback)
        group, period = callback_group or self._default_callback_group, period_ns(timer_period_sec)
        timer = Timer(callback, group, period, clock or self._clock, autostart=autostart)
        self._add(timer)
        return timer

    def create_guard_condition(
        self, callback: Callable[[], Any], callback_group: CallbackGroup | None = None
    ) -> GuardCondition:
        """Create a guard condition."""
        check_callback(callback)
        guard = GuardCondition(callback, callback_group or self._default_callback_group)
        self._add(guard)
        return guard

    @property
    def _participant(self) -> Participant:
        if self._destroyed:
            raise InvalidHandle(f"node {self.get_fully_qualified_name()} was destroyed")
        return self._context.participant

    def _add(self, entity: Any, *endpoints: Reader | Writer) -> None:
        with self._entities_lock:
            if self._destroyed:
                entity.destroy()  # no one else owns it
                raise InvalidHandle(f"node {self.get_fully_qualified_name()} was destroyed")
            if isinstance(entity, IncompatibleQos):
                pass  # owned by its publisher or subscription
            elif endpoints:
                self._context.graph.add_endpoints(self._entry, *endpoints)
                self._endpoints.append(entity)
            else:
                self._others.append(entity)
            if isinstance(entity, Waitable):
                entity._wake = self._wake_executor
                self._waitables = (*self._waitables, entity)
        self._wake_executor()

    def _remove(self, entity: Any) -> bool:
        with self._entities_lock:
            known = self._endpoints if entity in self._endpoints else self._others
            if entity not in known:
                return False
            known.remove(entity)
            event = self._events.pop(entity, None)
            self._waitables = tuple(kept for kept in self._waitables if kept is not entity and kept is not event)
        entity.destroy()
        self._wake_executor()
        return True

    def destroy_publisher(self, publisher: Publisher) -> bool:
        """Destroy a publisher; return whether it was this node's."""
        return self._remove(publisher)

    def destroy_subscription(self, subscription: Subscription) -> bool:
        """Destroy a subscription; return whether it was this node's."""
        return self._remove(subscription)

    def destroy_service(self, service: Service) -> bool:
        """Destroy a service; return whether it was this node's."""
        return self._remove(service)

    def destroy_client(self, client: Client) -> bool:
        """Destroy a client; return whether it was this node's."""
        return self._remove(client)

    def destroy_timer(self, timer: Timer) -> bool:
        """Destroy a timer; return whether it was this node's."""
        return self._remove(timer)

    def destroy_guard_condition(self, guard: GuardCondition) -> bool:
        """Destroy a guard condition; return whether it was this node's."""
        return self._remove(guard)

    def destroy_node(self) -> None:
        """Destroy everything that the node created, and leave its executor and the graph. Idempotent."""
        with self._entities_lock:
            if self._destroyed:
                return
            self._destroyed = True
        self.executor = None
        if self._rosout is not None:
            self._rosout.close()
        for entity in [*self._others, *self._endpoints]:
            self._remove(entity)
        self._context.graph.remove_node(self._entry)
        self._context.remove_node(self)

    @property
    def waitables(self) -> tuple[Waitable, ...]:
        """Everything of this node that an executor runs."""
        return self._waitables

    def _of(self, kind: type) -> Iterator[Any]:
        with self._entities_lock:
            return iter([entity for entity in (*self._endpoints, *self._others) if isinstance(entity, kind)])

    @property
    def publishers(self) -> Iterator[Publisher]:
        """The node's publishers, except that of /rosout."""
        own = None if self._rosout is None else self._rosout.publisher
        return iter([publisher for publisher in self._of(Publisher) if publisher is not own])

    @property
    def subscriptions(self) -> Iterator[Subscription]:
        """The node's subscriptions."""
        return self._of(Subscription)

    @property
    def services(self) -> Iterator[Service]:
        """The node's services."""
        return self._of(Service)

    @property
    def clients(self) -> Iterator[Client]:
        """The node's clients."""
        return self._of(Client)

    @property
    def timers(self) -> Iterator[Timer]:
        """The node's timers."""
        return self._of(Timer)

    @property
    def guards(self) -> Iterator[GuardCondition]:
        """The node's guard conditions."""
        return self._of(GuardCondition)

    # ------------------------------------------------------------------------------------------------------ executor

    @property
    def executor(self) -> Any:
        """The executor that runs this node, or None."""
        return self._executor()

    @executor.setter
    def executor(self, executor: Any) -> None:
        current = self.executor
        if current is executor:
            return
        self._executor = _no_executor if executor is None else weakref.ref(executor)
        if current is not None:
            current.remove_node(self)
        if executor is not None:
            executor.add_node(self)

    def _wake_executor(self) -> None:
        executor = self.executor
        if executor is not None:
            executor.wake()


def _no_executor() -> None:
    """Replaces the weak reference while the node has no executor."""
