"""Services and clients with the wire mapping of rmw_cyclonedds.

A request is sent on `rq/<name>Request` and its response on `rr/<name>Reply`; each starts with the id of the client's
writer and the sequence number of the call, by which a client recognizes its own responses.
"""

from __future__ import annotations

import inspect
import itertools
import struct
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from multi_dnn_ros.standalone import cdr, logs
from multi_dnn_ros.standalone.callback_groups import CallbackGroup
from multi_dnn_ros.standalone.dds import SERVICE_HEADER_BYTES, Participant, Payload, Reader, Writer, hash_user_data
from multi_dnn_ros.standalone.entities import Waitable, Work
from multi_dnn_ros.standalone.errors import InvalidHandle
from multi_dnn_ros.standalone.futures import Future
from multi_dnn_ros.standalone.messages import Message
from multi_dnn_ros.standalone.messages import Service as ServiceType
from multi_dnn_ros.standalone.qos import QoSProfile, to_dds
from multi_dnn_ros.standalone.topics import check_callback

_MATCH_TIMEOUT_S: Final = 0.1
_MATCH_STEP_S: Final = 0.01
_log = logs.get_logger("multi_dnn_ros.standalone")


def check_service_type(srv_type: Any) -> type[ServiceType]:
    """Return the class if it is one of the runtime's service classes.

    Raises:
        AttributeError: names the given object; rclpy fails on a missing attribute of generated classes, too.
        RuntimeError: for a message class.
    """
    if isinstance(srv_type, type) and issubclass(srv_type, Message):
        raise RuntimeError(f"The service type provided is not valid ({srv_type}), this might be a message or action")
    if not (isinstance(srv_type, type) and issubclass(srv_type, ServiceType)):
        raise AttributeError(f"a service class such as std_srvs.srv.SetBool is expected, not {srv_type!r}")
    return srv_type


def _identity(role: str) -> bytes:
    # Any unique 16 bytes; rmw_cyclonedds formats them as hexadecimal numbers joined with dots.
    return f"{role}=".encode() + ".".join(f"{byte:x}" for byte in uuid.uuid4().bytes).encode() + b";"


def _entry(user_data: bytes, key: bytes) -> bytes | None:
    for entry in user_data.split(b";"):
        name, separator, value = entry.partition(b"=")
        if separator and name == key:
            return value
    return None


def _header(data: bytes) -> tuple[int, int]:
    order = "<" if data[1:2] == b"\x01" else ">"
    try:
        guid, sequence = struct.unpack_from(f"{order}Qq", data, cdr.HEADER_BYTES)
    except struct.error as error:
        raise cdr.CdrError(f"truncated service header: {error}") from error
    return guid, sequence


class _ServiceEndpoints(Waitable):
    """The writer and reader of a service or client."""

    def __init__(
        self,
        participant: Participant,
        srv_type: type[ServiceType],
        srv_name: str,
        callback_group: CallbackGroup,
        qos: QoSProfile,
        absolute: str,
        *,
        serves: bool,
    ) -> None:
        super().__init__(callback_group)
        self.srv_type = srv_type
        self.srv_name = srv_name
        self.service_name = absolute
        self.qos_profile = qos
        identity = _identity("serviceid" if serves else "clientid")
        request, response = srv_type.Request.__msgtype__, srv_type.Response.__msgtype__
        requests, replies = f"rq{absolute}Request", f"rr{absolute}Reply"
        outgoing, incoming = (
            ((replies, response), (requests, request))
            if serves
            else (
                (requests, request),
                (replies, response),
            )
        )
        self.writer = Writer(participant, *outgoing, to_dds(qos, identity + hash_user_data(outgoing[1])))
        try:
            self.reader = Reader(participant, *incoming, to_dds(qos, identity + hash_user_data(incoming[1])))
        except BaseException:
            self.writer.close()
            raise
        self.condition = self.reader.condition

    def is_ready(self) -> bool:
        """Return whether there is a request or a response."""
        return self.reader.has_data()

    def _send(self, message: Message, guid: int, sequence: int) -> None:
        data = cdr.serialize(message, struct.pack("<Qq", guid, sequence), Payload)
        with self.writer.lock:
            if self.writer.closed:
                raise InvalidHandle(f"the service or client of {self.service_name} was destroyed")
            self.writer.write(data)

    def destroy(self) -> None:
        """Free the DDS reader and writer."""
        self.reader.close()
        self.writer.close()


class Service(_ServiceEndpoints):
    """Serves requests: calls `callback(request, response)` and sends the returned response."""

    def __init__(
        self,
        participant: Participant,
        srv_type: type[ServiceType],
        srv_name: str,
        callback: Callable[[Any, Any], Any],
        callback_group: CallbackGroup,
        qos: QoSProfile,
        absolute: str,
    ) -> None:
        """Create a service; `srv_name` is the name as given by the program, `absolute` the resolved one."""
        check_callback(callback)
        super().__init__(
            participant, check_service_type(srv_type), srv_name, callback_group, qos, absolute, serves=True
        )
        self.callback = callback

    def take(self) -> Work | None:
        """Take the oldest request; an invalid one is dropped, with an error in the log."""
        taken = self.reader.take()
        if taken is None:
            return None
        data, info = taken
        try:
            guid, sequence = _header(data)
            request = cdr.deserialize(data, self.srv_type.Request, SERVICE_HEADER_BYTES)
        except cdr.CdrError as error:
            _log.error(f"request to {self.service_name} dropped: {error}", throttle_duration_sec=1.0)
            return None
        return lambda: self._answer(request, guid, sequence, info.publication_handle)

    def _answer(self, request: Message, guid: int, sequence: int, caller: int) -> Any:
        response = self.callback(request, self.srv_type.Response())
        if not inspect.iscoroutine(response):
            return self._reply(response, guid, sequence, caller)

        async def answer_later() -> None:
            self._reply(await response, guid, sequence, caller)

        return answer_later()

    def _reply(self, response: Any, guid: int, sequence: int, caller: int) -> None:
        if not isinstance(response, self.srv_type.Response):
            raise TypeError(f"service {self.service_name}: the callback must return the response, not {response!r:.80}")
        self._await_caller(caller)
        self._send(response, guid, sequence)

    def _await_caller(self, caller: int) -> None:
        """Wait until the caller's response reader is connected; a response sent earlier would be lost."""
        with self.reader.lock:
            if self.reader.closed:
                return
            client = _entry(self.reader.user_data_of(caller), b"clientid")
        deadline = time.monotonic() + _MATCH_TIMEOUT_S
        while client is not None and time.monotonic() < deadline:
            with self.writer.lock:
                if self.writer.closed or client in {
                    _entry(user_data, b"clientid") for user_data in self.writer.matched_user_data()
                }:
                    return
            time.sleep(_MATCH_STEP_S)


class Client(_ServiceEndpoints):
    """Calls a service."""

    def __init__(
        self,
        participant: Participant,
        srv_type: type[ServiceType],
        srv_name: str,
        callback_group: CallbackGroup,
        qos: QoSProfile,
        absolute: str,
        context: Any,
    ) -> None:
        """Create a client; `srv_name` is the name as given by the program, `absolute` the resolved one."""
        super().__init__(
            participant, check_service_type(srv_type), srv_name, callback_group, qos, absolute, serves=False
        )
        self._context = context
        self._guid = self.writer.instance_handle
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future] = {}

    def service_is_ready(self) -> bool:
        """Return whether there is a server whose request reader and response writer are both connected."""
        with self.writer.lock:
            if self.writer.closed:
                raise InvalidHandle(f"the client of {self.service_name} was destroyed")
            readers = [_entry(user_data, b"serviceid") for user_data in self.writer.matched_user_data()]
            writers = [_entry(user_data, b"serviceid") for user_data in self.reader.matched_user_data()]
        servers = {reader for reader in readers if reader is not None}
        return bool(servers & set(writers)) if servers else bool(readers and writers)

    def wait_for_service(self, timeout_sec: float | None = None) -> bool:
        """Wait for a server, indefinitely if `timeout_sec` is None or negative; return whether there is one."""
        deadline = None if timeout_sec is None or timeout_sec < 0 else time.monotonic() + timeout_sec
        while self._context.ok():
            if self.service_is_ready():
                return True
            left = _MATCH_STEP_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _MATCH_STEP_S))
        return False

    def call_async(self, request: Message) -> Future:
        """Send a request; the future is set when an executor takes the response."""
        if not isinstance(request, self.srv_type.Request):
            raise TypeError(
                f"service {self.service_name} takes {self.srv_type.Request.__msgtype__}, not {type(request)}"
            )
        future = Future()
        with self._lock:
            sequence = next(self._numbers)
            self._pending[sequence] = future
        try:
            self._send(request, self._guid, sequence)
        except BaseException:
            self.remove_pending_request(future)
            raise
        future.add_done_callback(self.remove_pending_request)
        return future

    def call(self, request: Message, timeout_sec: float | None = None) -> Any:
        """Send a request and wait for the response, which an executor in another thread must take.

        Returns:
            The response, None on timeout.
        """
        arrived = threading.Event()
        future = self.call_async(request)
        future.add_done_callback(lambda _: arrived.set())
        if not arrived.wait(timeout_sec):
            self.remove_pending_request(future)
        return future.result()

    def remove_pending_request(self, future: Future) -> None:
        """Cancel a call; a late response to it is dropped."""
        with self._lock:
            for sequence, pending in list(self._pending.items()):
                if pending is future:
                    del self._pending[sequence]

    def take(self) -> Work | None:
        """Take the oldest response; it is dropped if it is for another client or a removed call."""
        taken = self.reader.take()
        if taken is None:
            return None
        data = taken[0]
        try:
            guid, sequence = _header(data)
            with self._lock:
                future = self._pending.get(sequence) if guid == self._guid else None
            if future is None:
                return None
            response = cdr.deserialize(data, self.srv_type.Response, SERVICE_HEADER_BYTES)
        except cdr.CdrError as error:
            _log.error(f"response of {self.service_name} dropped: {error}", throttle_duration_sec=1.0)
            return None
        return lambda: future.set_result(response)

    def destroy(self) -> None:
        """Free the DDS endpoints and cancel pending calls."""
        super().destroy()
        with self._lock:
            pending = list(self._pending.values())
        for future in pending:
            future.cancel()
