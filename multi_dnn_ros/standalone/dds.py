"""Cyclone DDS as used by rmw_cyclonedds: domain configuration, participant, and readers and writers of CDR bytes.

Types on the wire carry their real fields, so that any DDS tool can show them, but the bytes pass through unchanged:
cyclonedds's own (de)serialization is far too slow for images.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import cyclonedds.idl.types as idl_types
from cyclonedds.core import DDSException, Entity, InstanceState, Policy, Qos, ReadCondition, SampleState, ViewState
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.internal import DDS
from cyclonedds.pub import DataWriter, Publisher
from cyclonedds.sub import DataReader, Subscriber
from cyclonedds.topic import Topic

from multi_dnn_ros.standalone import interfaces, logs, transport
from multi_dnn_ros.standalone.errors import RCLError
from multi_dnn_ros.standalone.interfaces import FieldType
from multi_dnn_ros.standalone.loopback import restrict_to_loopback

# The ports of higher domains do not exist: domain 233 would begin at port 7400 + 250 * 233 = 65,650.
MAX_DOMAIN_ID: Final = 232
SERVICE_HEADER_BYTES: Final = 16
_NO_HANDLES: Final = ctypes.c_size_t(0)
_ANY: Final = SampleState.Any | ViewState.Any | InstanceState.Any
_IDL_PRIMITIVES: Final[dict[str, Any]] = {
    "bool": bool,
    "byte": idl_types.uint8,
    "char": idl_types.uint8,
    "string": str,
    **{name: getattr(idl_types, name) for name in interfaces.PRIMITIVE_BYTES if name not in ("bool", "byte", "char")},
}

_lock = threading.RLock()
_log = logs.get_logger("multi_dnn_ros.standalone")
_wire_types: dict[str, Any] = {}
_structs: dict[str, Any] = {}
_domains: dict[int, tuple[Domain | None, int]] = {}


def delete(entity: Entity) -> None:
    """Free a DDS entity now; Cyclone's binding frees it only with the last Python reference."""
    if hasattr(entity, "_ref"):
        entity.__del__()
        del entity._ref  # prevents a later __del__ from freeing another entity with the same handle


class Participant:
    """One participant of a domain with its publisher and subscriber; contexts of one domain share the configuration.

    loopback: receive from this machine only.
    """

    def __init__(self, domain_id: int, config: str | None, user_data: bytes, *, loopback: bool = False) -> None:
        """Join a domain.

        Raises:
            RCLError: if Cyclone DDS cannot start, for example because no ports are free; names the domain.
        """
        self.domain_id = domain_id
        with _lock:
            domain, users = _domains.get(domain_id, (None, 0))
            if users == 0 and config is not None:
                with _joining(domain_id, config):
                    domain = Domain(domain_id, config)
            _domains[domain_id] = (domain, users + 1)
        try:
            with _joining(domain_id, config):
                self.entity = DomainParticipant(domain_id, qos=Qos(Policy.Userdata(user_data)))
            if loopback and (open_ports := restrict_to_loopback(domain_id)):
                _log.warning(
                    f"UDP ports {', '.join(map(str, open_ports))} receive from other machines too, because this system "
                    "does not allow sockets to be bound to lo; close the ports with a firewall"
                )
        except BaseException:
            self._release_domain()
            raise
        self.publisher = Publisher(self.entity)
        self.subscriber = Subscriber(self.entity)

    def close(self) -> None:
        """Free the participant and everything created from it; free the domain with its last participant."""
        for entity in (self.publisher, self.subscriber, self.entity):
            delete(entity)
        self._release_domain()

    def _release_domain(self) -> None:
        with _lock:
            domain, users = _domains.pop(self.domain_id)
            if users > 1:
                _domains[self.domain_id] = (domain, users - 1)
            elif domain is not None:
                delete(domain)


@contextlib.contextmanager
def _joining(domain_id: int, config: str | None) -> Iterator[None]:
    try:
        yield
    except DDSException as error:
        limit = (
            "it is configured by CYCLONEDDS_URI"
            if config is None
            else f"a domain has ports for {transport.MAX_PROCESSES} processes of one machine"
        )
        raise RCLError(
            f"cannot join ROS domain {domain_id} ({error}): Cyclone DDS has printed the reason; {limit}"
        ) from error


class _Sample:
    """CDR bytes in, CDR bytes out: called by Cyclone's binding for every sample."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def serialize(self, buffer: Any = None, endianness: Any = None, use_version_2: Any = None) -> Any:
        return self.data

    @classmethod
    def deserialize(cls, data: bytes, has_header: bool = True, use_version_2: Any = None) -> _Sample:
        return cls(data)

    @classmethod
    def deserialize_key(cls, data: bytes, has_header: bool = True, use_version_2: Any = None) -> _Sample:
        # Required: the process otherwise crashes when a remote writer leaves.
        return cls(None)


class Payload(bytearray):
    """A buffer for :func:`cdr.serialize` that Cyclone's binding pads without a copy."""

    def ljust(self, width: Any, fill: Any = b"\0") -> Payload:
        """Pad in place."""
        if len(self) < width:
            self += bytes(width - len(self))
        return self


def _field(kind: FieldType) -> Any:
    idl: Any = idl_types  # its generic classes have no type hints
    base = _struct(kind.base) if kind.is_message else _IDL_PRIMITIVES[kind.base]
    if kind.string_bound:
        base = idl.bounded_str[kind.string_bound]
    if kind.array is not None:
        return idl.array[base, kind.array]
    if kind.sequence is not None:
        return idl.sequence[base, kind.sequence] if kind.sequence else idl.sequence[base]
    return base


def _typename(type_name: str) -> str:
    package, kind, name = type_name.split("/")
    return f"{package}.{kind}.dds_.{name}_"


def _new_struct(type_name: str, fields: dict[str, Any], methods: dict[str, Any]) -> Any:
    def body(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"] = fields
        namespace.update(methods)

    return types.new_class(type_name.replace("/", "__"), (IdlStruct,), {"typename": _typename(type_name)}, body)


def _struct(type_name: str) -> Any:
    if type_name not in _structs:
        _structs[type_name] = _new_struct(type_name, _fields(type_name), {})
    return _structs[type_name]


def _fields(type_name: str) -> dict[str, Any]:
    return {name: _field(kind) for name, kind in interfaces.wire_fields(type_name)}


def wire_type(type_name: str) -> Any:
    """Return the DDS type of a message, service request or service response; requests and responses start with the
    caller's id and sequence number.
    """
    with _lock:
        if type_name not in _wire_types:
            header = {"guid": idl_types.uint64, "seq": idl_types.int64} if "/srv/" in type_name else {}
            names = ("__init__", "serialize", "deserialize", "deserialize_key")
            methods = {name: _Sample.__dict__[name] for name in names}
            _wire_types[type_name] = _new_struct(type_name, {**header, **_fields(type_name)}, methods)
        return _wire_types[type_name]


def hash_user_data(type_name: str) -> bytes:
    """Return the user data that announces the type hash to ROS 2 (REP 2016)."""
    return f"typehash={interfaces.type_hash(type_name)};".encode()


class _Endpoint:
    entity: Any
    condition: Any = None
    _topic: Any

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.closed = False
        self.before_close: Callable[[], None] = _nothing

    @functools.cached_property
    def gid(self) -> bytes:
        """The endpoint's identifier on the network, 16 bytes."""
        return bytes(self.entity.guid.bytes)

    def close(self) -> None:
        """Call :attr:`before_close`, then free the endpoint; idempotent."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self.before_close()
        with self.lock:
            if self.condition is not None:
                delete(self.condition)
            delete(self.entity)
            delete(self._topic)


def _nothing() -> None:
    """Default of `before_close`: do nothing."""


class Writer(_Endpoint):
    """A DDS writer of CDR bytes."""

    def __init__(self, participant: Participant, topic: str, type_name: str, qos: Qos) -> None:
        super().__init__()
        self._name = topic
        self._type = wire_type(type_name)
        self._topic = Topic(participant.entity, topic, self._type)
        try:
            self.entity = DataWriter(participant.publisher, self._topic, qos)
        except BaseException:
            delete(self._topic)
            raise
        self._count_matched: Callable[..., int] = DDS._dll_handle.dds_get_matched_subscriptions

    def write(self, data: Any) -> None:
        """Send CDR bytes; a :class:`Payload` is sent without a copy.

        A sample that cannot be sent in time because readers are too slow is dropped with a warning in the log.

        Raises:
            RCLError: for bytes that DDS rejects; names the topic.
        """
        try:
            self.entity.write(self._type(data))
        except DDSException as error:
            if error.code == DDSException.DDS_RETCODE_TIMEOUT:
                _log.warning(f"sample on {self._name} dropped: readers do not keep up", throttle_duration_sec=1.0)
                return
            raise RCLError(f"cannot send on {self._name}: {error}") from error

    def wait_for_acks(self, timeout_ns: int) -> bool:
        """Wait until every connected reliable reader has acknowledged everything; False on timeout.

        Raises:
            RCLError: if DDS rejects the wait; names the topic.
        """
        # Not DataWriter.wait_for_acks, which raises AttributeError on timeout (cyclonedds 11.0.1).
        code = self.entity._wait_for_acks(self.entity._ref, timeout_ns)
        if code not in (DDSException.DDS_RETCODE_OK, DDSException.DDS_RETCODE_TIMEOUT):
            raise RCLError(f"cannot wait for the readers of {self._name}: {DDSException(code)}")
        return bool(code == DDSException.DDS_RETCODE_OK)

    @property
    def instance_handle(self) -> int:
        """Cyclone's number for this writer, which identifies a service's caller."""
        return int(self.entity.get_instance_handle()) & 2**64 - 1

    def matched_count(self) -> int:
        """Return the number of connected readers, quickly, because programs may call this before each sample."""
        count = self._count_matched(self.entity._ref, None, _NO_HANDLES)
        if count < 0:
            raise RCLError(f"cannot count the readers of {self._name}: {DDSException(count)}")
        return count

    def matched(self) -> list[int]:
        """Return the handles of the connected readers."""
        return list(self.entity.get_matched_subscriptions())

    def matched_user_data(self) -> list[bytes]:
        """Return the user data of the connected readers."""
        return [_user_data(self.entity.get_matched_subscription_data(handle)) for handle in self.matched()]


class Reader(_Endpoint):
    """A DDS reader of CDR bytes, with the condition that an executor waits on."""

    def __init__(self, participant: Participant, topic: str, type_name: str, qos: Qos) -> None:
        super().__init__()
        self._topic = Topic(participant.entity, topic, wire_type(type_name))
        try:
            self.entity = DataReader(participant.subscriber, self._topic, qos)
        except BaseException:
            delete(self._topic)
            raise
        self.condition = ReadCondition(self.entity, _ANY)

    def take(self) -> tuple[bytes, Any] | None:
        """Return the oldest sample's bytes and information, or None."""
        with self.lock:
            while not self.closed:
                samples = self.entity.take(1)
                if not samples:
                    return None
                sample = samples[0]
                if sample.sample_info.valid_data:
                    return sample.data, sample.sample_info
        return None

    def has_data(self) -> bool:
        """Return whether a sample is available."""
        with self.lock:
            return not self.closed and bool(self.condition.triggered)

    def matched(self) -> list[int]:
        """Return the handles of the connected writers."""
        return list(self.entity.get_matched_publications())

    def matched_user_data(self) -> list[bytes]:
        """Return the user data of the connected writers."""
        return [_user_data(self.entity.get_matched_publication_data(handle)) for handle in self.matched()]

    def user_data_of(self, handle: int) -> bytes:
        """Return the user data of one writer; empty if it no longer exists."""
        return _user_data(self.entity.get_matched_publication_data(handle))


def _user_data(endpoint: Any) -> bytes:
    if endpoint is None or Policy.Userdata not in endpoint.qos:
        return b""
    return bytes(endpoint.qos[Policy.Userdata].data)
