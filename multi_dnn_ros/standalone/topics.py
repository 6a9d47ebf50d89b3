"""Publishers and subscriptions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from multi_dnn_ros.standalone import cdr, logs
from multi_dnn_ros.standalone.callback_groups import CallbackGroup
from multi_dnn_ros.standalone.dds import Participant, Payload, Reader, Writer, hash_user_data
from multi_dnn_ros.standalone.entities import Waitable, Work
from multi_dnn_ros.standalone.errors import InvalidHandle
from multi_dnn_ros.standalone.messages import Message, Service
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.qos import QoSProfile, to_dds
from multi_dnn_ros.standalone.time_values import Duration

_TypeT = TypeVar("_TypeT", bound=type[Message])


def check_message_type(msg_type: _TypeT) -> _TypeT:
    """Return the class if it is one of the runtime's message classes.

    Raises:
        AttributeError: names the given object; rclpy fails on a missing attribute of generated classes, too.
        RuntimeError: for a service class.
    """
    if isinstance(msg_type, type) and issubclass(msg_type, Service):
        raise RuntimeError(f"The message type provided is not valid ({msg_type}), this might be a service or action")
    if not (isinstance(msg_type, type) and issubclass(msg_type, Message) and "/msg/" in msg_type.__msgtype__):
        raise AttributeError(f"a message class such as std_msgs.msg.String is expected, not {msg_type!r}")
    return msg_type


def check_callback(callback: Any) -> None:
    """Check that a callback is callable, or None if it will be set later.

    Raises:
        TypeError: otherwise.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"the callback must be callable, not {callback!r}")


def _dds_topic(name: str, qos: QoSProfile) -> str:
    return name.removeprefix("/") if qos.avoid_ros_namespace_conventions else f"rt{name}"


class Publisher(Surface):
    """Sends messages of one type on one topic."""

    def __init__(
        self, participant: Participant, msg_type: type[Message], topic: str, qos: QoSProfile, absolute: str
    ) -> None:
        """Create a publisher; `topic` is the name as given by the program, `absolute` the resolved one."""
        self.msg_type = msg_type
        self.topic = topic
        self.topic_name = absolute
        self.qos_profile = qos
        dds_qos = to_dds(qos, hash_user_data(msg_type.__msgtype__))
        self.writer = Writer(participant, _dds_topic(absolute, qos), msg_type.__msgtype__, dds_qos)

    def publish(self, msg: Message | bytes) -> None:
        """Send a message, or the CDR bytes of one.

        Raises:
            TypeError: if the message has another type than the publisher.
            CdrError: if a field has a value that its type cannot represent; names it.
            InvalidHandle: if the publisher was destroyed.
        """
        if isinstance(msg, self.msg_type):
            data = cdr.serialize(msg, into=Payload)
        elif isinstance(msg, (bytes, bytearray, memoryview)):
            data = Payload(msg)
        else:
            raise TypeError(
                f"topic {self.topic_name} carries {self.msg_type.__msgtype__}, not {type(msg).__qualname__}"
            )
        self._send(data)

    def _send(self, data: bytearray) -> None:
        with self.writer.lock:
            if self.writer.closed:
                raise InvalidHandle(f"the publisher on {self.topic_name} was destroyed")
            self.writer.write(data)

    def get_subscription_count(self) -> int:
        """Return the number of connected subscriptions, in this process and others."""
        with self.writer.lock:
            if self.writer.closed:
                raise InvalidHandle(f"the publisher on {self.topic_name} was destroyed")
            return self.writer.matched_count()

    def wait_for_all_acked(self, timeout: Duration | None = None) -> bool:
        """Wait until every reliable subscription has received everything; False on timeout.

        Raises:
            InvalidHandle: if the publisher was destroyed.
        """
        if self.writer.closed:
            raise InvalidHandle(f"the publisher on {self.topic_name} was destroyed")
        nanoseconds = 2**63 - 1 if timeout is None or timeout.nanoseconds < 0 else timeout.nanoseconds
        return self.writer.wait_for_acks(nanoseconds)  # without the lock, because it may take long

    def destroy(self) -> None:
        """Free the DDS writer."""
        self.writer.close()


class Subscription(Waitable):
    """Calls back for every message of one type on one topic.

    byte_views: fields of type `uint8[]` are read-only views of the received bytes. rclpy has no such setting; it saves
    a copy of each image.
    """

    def __init__(
        self,
        participant: Participant,
        msg_type: type[Message],
        topic: str,
        callback: Callable[..., Any],
        callback_group: CallbackGroup,
        qos: QoSProfile,
        raw: bool,
        absolute: str,
    ) -> None:
        """Create a subscription; `topic` is the name as given by the program, `absolute` the resolved one."""
        super().__init__(callback_group)
        self.msg_type = msg_type
        self.topic = topic
        self.topic_name = absolute
        self.callback = callback
        self.qos_profile = qos
        self.raw = raw
        self.byte_views = False
        self._logger = logs.get_logger("multi_dnn_ros.standalone")
        dds_qos = to_dds(qos, hash_user_data(msg_type.__msgtype__))
        self.reader = Reader(participant, _dds_topic(absolute, qos), msg_type.__msgtype__, dds_qos)
        self.condition = self.reader.condition

    @property
    def callback(self) -> Callable[..., Any]:
        """The function called with each message."""
        return self._callback

    @callback.setter
    def callback(self, callback: Callable[..., Any]) -> None:
        self._with_info = _takes_two_arguments(callback)
        self._callback = callback

    def is_ready(self) -> bool:
        """Return whether there is a message."""
        return self.reader.has_data()

    def take(self) -> Work | None:
        """Take the oldest message; invalid bytes are dropped, with an error in the log."""
        taken = self.reader.take()
        if taken is None:
            return None
        data, info = taken
        message: Any = data
        if not self.raw:
            try:
                message = cdr.deserialize(data, self.msg_type, byte_views=self.byte_views)
            except cdr.CdrError as error:
                self._logger.error(f"message on {self.topic_name} dropped: {error}", throttle_duration_sec=1.0)
                return None
        if not self._with_info:
            return lambda: self.callback(message)
        details = {
            "source_timestamp": info.source_timestamp,
            "received_timestamp": info.source_timestamp,
            "publication_sequence_number": None,
            "reception_sequence_number": None,
        }
        return lambda: self.callback(message, details)

    def get_publisher_count(self) -> int:
        """Return the number of connected publishers, in this process and others."""
        with self.reader.lock:
            if self.reader.closed:
                raise InvalidHandle(f"the subscription to {self.topic_name} was destroyed")
            return len(self.reader.matched())

    def destroy(self) -> None:
        """Free the DDS reader."""
        self.reader.close()


def _takes_two_arguments(callback: Callable[..., Any]) -> bool:
    for arguments in ((object(),), (object(), object())):
        try:
            inspect.signature(callback).bind(*arguments)
        except ValueError:  # a C function without a signature
            return False
        except TypeError:
            continue
        return len(arguments) == 2
    raise RuntimeError(
        "Subscription: the callback must be callable with the message, or with the message and its info, "
        f"not {callback!r}"
    )
