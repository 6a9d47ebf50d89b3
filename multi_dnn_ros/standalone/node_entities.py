"""The entities of a node: creates and destroys its publishers, subscriptions, services, clients, timers and guards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.standalone import logs
from multi_dnn_ros.standalone.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from multi_dnn_ros.standalone.clock import Clock
from multi_dnn_ros.standalone.dds import Participant, Reader, Writer
from multi_dnn_ros.standalone.entities import GuardCondition, Timer, Waitable, period_ns
from multi_dnn_ros.standalone.errors import InvalidHandle
from multi_dnn_ros.standalone.messages import Message
from multi_dnn_ros.standalone.messages import Service as ServiceType
from multi_dnn_ros.standalone.missing import Surface, refuse
from multi_dnn_ros.standalone.qos import QoSProfile, qos_profile_services_default, to_profile
from multi_dnn_ros.standalone.qos_events import IncompatibleQos
from multi_dnn_ros.standalone.rosout import Rosout
from multi_dnn_ros.standalone.services import Client, Service
from multi_dnn_ros.standalone.topics import Publisher, Subscription, check_callback, check_message_type

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.context import Context
    from multi_dnn_ros.standalone.graph import NodeEntry
    from multi_dnn_ros.standalone.names import RemapRule


class NodeEntities(Surface):
    """The part of a node that owns its entities. Nodes set the attributes declared here before creating any."""

    _context: Context
    _entry: NodeEntry
    _clock: Clock
    _logger: logs.RcutilsLogger
    _rosout: Rosout | None

    def __init__(self) -> None:
        self._entities_lock = threading.RLock()
        self._endpoints: list[Any] = []  # publishers, subscriptions, services, clients
        self._others: list[Waitable] = []  # timers and guard conditions
        self._events: dict[Any, IncompatibleQos] = {}  # by publisher or subscription
        self._waitables: tuple[Waitable, ...] = ()
        self._destroyed = False
        self._default_callback_group = MutuallyExclusiveCallbackGroup()

    def get_fully_qualified_name(self) -> str:
        """Return namespace and name; implemented by the node."""
        raise NotImplementedError

    def _remapped(self, name: str, *, service: bool = False, rules: Sequence[RemapRule] | None = None) -> str:
        """Return the absolute name of a topic or service, remapped; implemented by the node."""
        raise NotImplementedError

    def _wake_executor(self) -> None:
        """Let the executor notice that the entities have changed; implemented by the node."""
        raise NotImplementedError

    @property
    def default_callback_group(self) -> CallbackGroup:
        """The group of entities created without one: one callback at a time."""
        return self._default_callback_group

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
        qos, absolute = to_profile(qos_profile), self._remapped(topic)
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
        qos, absolute = to_profile(qos_profile), self._remapped(topic)
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
        """Create a timer on the node's clock, or on `clock` if it is given."""
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
        """Destroy a publisher; return whether it belonged to this node."""
        return self._remove(publisher)

    def destroy_subscription(self, subscription: Subscription) -> bool:
        """Destroy a subscription; return whether it belonged to this node."""
        return self._remove(subscription)

    def destroy_service(self, service: Service) -> bool:
        """Destroy a service; return whether it belonged to this node."""
        return self._remove(service)

    def destroy_client(self, client: Client) -> bool:
        """Destroy a client; return whether it belonged to this node."""
        return self._remove(client)

    def destroy_timer(self, timer: Timer) -> bool:
        """Destroy a timer; return whether it belonged to this node."""
        return self._remove(timer)

    def destroy_guard_condition(self, guard: GuardCondition) -> bool:
        """Destroy a guard condition; return whether it belonged to this node."""
        return self._remove(guard)

    @property
    def waitables(self) -> tuple[Waitable, ...]:
        """Everything of this node that an executor runs."""
        return self._waitables

    def _entities_of(self, kind: type) -> Iterator[Any]:
        with self._entities_lock:
            return iter([entity for entity in (*self._endpoints, *self._others) if isinstance(entity, kind)])

    @property
    def publishers(self) -> Iterator[Publisher]:
        """The node's publishers, except the one of /rosout."""
        rosout = None if self._rosout is None else self._rosout.publisher
        return iter([publisher for publisher in self._entities_of(Publisher) if publisher is not rosout])

    @property
    def subscriptions(self) -> Iterator[Subscription]:
        """The node's subscriptions."""
        return self._entities_of(Subscription)

    @property
    def services(self) -> Iterator[Service]:
        """The node's services."""
        return self._entities_of(Service)

    @property
    def clients(self) -> Iterator[Client]:
        """The node's clients."""
        return self._entities_of(Client)

    @property
    def timers(self) -> Iterator[Timer]:
        """The node's timers."""
        return self._entities_of(Timer)

    @property
    def guards(self) -> Iterator[GuardCondition]:
        """The node's guard conditions."""
        return self._entities_of(GuardCondition)
