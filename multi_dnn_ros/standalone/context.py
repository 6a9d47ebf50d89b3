"""The context: one ROS session of a process, with its command line, its DDS participant and its part of the graph."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from multi_dnn_ros.standalone import dds, logs, signals, transport
from multi_dnn_ros.standalone.arguments import Arguments, parse
from multi_dnn_ros.standalone.errors import NotInitializedException
from multi_dnn_ros.standalone.graph import Graph
from multi_dnn_ros.standalone.missing import Surface, UnsupportedError

_log = logs.get_logger("multi_dnn_ros.standalone")
_RANGES: Final = ("LOCALHOST", "SUBNET")


class Context(Surface):
    """A ROS session; `init()` starts it and `shutdown()` ends it. It cannot be restarted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._initialized = False
        self._ok = False
        self._closed = False
        self._callbacks: list[Callable[[], Any]] = []
        self._wakers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._nodes: weakref.WeakSet[Any] = weakref.WeakSet()
        self.arguments = Arguments()
        self._participant: dds.Participant | None = None
        self._graph: Graph | None = None

    def init(
        self, args: Sequence[str] | None = None, *, initialize_logging: bool = True, domain_id: int | None = None
    ) -> None:
        """Start the session.

        Args:
            args: the command line; default: `sys.argv`.
            initialize_logging: whether to apply the command line's log settings.
            domain_id: the ROS domain; default: ROS_DOMAIN_ID or 0.

        Raises:
            RuntimeError: if it was started before, or `domain_id` is negative.
            UnicodeEncodeError: for an argument with undecodable bytes.
            ValueError: for a domain or discovery range out of range; names it and the allowed values.
        """
        with self._lock:
            if self._initialized:
                raise RuntimeError("Context.init() must only be called once")
            if domain_id is not None and domain_id < 0:
                raise RuntimeError(f"Domain id ({domain_id}) should not be lower than zero.")
            argv = list(sys.argv if args is None else args)
            "".join(argv).encode()
            self.arguments = parse(argv)
            if initialize_logging:
                arguments = self.arguments
                logs.configure(arguments.default_level, arguments.levels, console=arguments.console)
            domain = _domain_id(domain_id)
            config, network, loopback, large_messages = _configuration()
            user_data = f"enclave={self.arguments.enclave};".encode()
            self._participant = dds.Participant(domain, config, user_data, loopback=loopback)
            self._graph = Graph(self._participant)
            self._initialized = self._ok = True
            _contexts.add(self)
        signals.watch(self)
        _log.info(f"ROS domain {domain}, network: {network}")
        if large_messages:
            _log.info(large_messages)

    def ok(self) -> bool:
        """Return whether the session is running."""
        return self._ok

    def shutdown(self) -> None:
        """End the session: destroy its nodes, free all DDS entities, wake all waits.

        Raises:
            RuntimeError: if the session is not running.
        """
        if not self._initialized:
            raise RuntimeError("Context must be initialized before it can be shutdown")
        if self._closed:
            raise RuntimeError("Context has been shut down already")
        self.try_shutdown()

    def try_shutdown(self) -> None:
        """End the session like :meth:`shutdown`, unless it has already ended."""
        self.interrupt()
        for node in list(self._nodes):
            node.destroy_node()
        with self._lock:
            if self._closed or self._participant is None or self._graph is None:
                return
            self._closed = True
        for waker in list(self._wakers):
            waker.close()
        self._graph.close()
        self._participant.close()

    def interrupt(self) -> None:
        """Make `ok()` false and all waits return; nodes exist until they are destroyed or the session is shut down."""
        with self._lock:
            if not self._ok:
                return
            self._ok = False
            callbacks, self._callbacks = self._callbacks, []
        self.wake()
        for callback in callbacks:
            callback()

    def on_shutdown(self, callback: Callable[[], Any]) -> None:
        """Call `callback()` when the session ends, or immediately if it has ended."""
        if not callable(callback):
            raise TypeError(f"callback should be a callable, got {type(callback)}")
        with self._lock:
            if self._ok or not self._initialized:
                self._callbacks.append(callback)
                return
        callback()

    def forget_on_shutdown(self, callback: Callable[[], Any]) -> None:
        """Remove a callback of :meth:`on_shutdown`."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def get_domain_id(self) -> int:
        """Return the ROS domain of the session.

        Raises:
            RuntimeError: before :meth:`init`.
        """
        if not self._initialized:
            raise RuntimeError("Context must be initialized before it can have a domain id")
        return self.participant.domain_id

    def destroy(self) -> None:
        """Free the remaining resources of the session."""
        self.try_shutdown()

    def __enter__(self) -> Context:
        self.init()
        return self

    def __exit__(self, *exception: object) -> None:
        self.try_shutdown()

    # ------------------------------------------------------------------------------------------- for the runtime only

    @property
    def participant(self) -> dds.Participant:
        """The DDS participant."""
        if self._participant is None:
            raise NotInitializedException("the context has no participant")
        return self._participant

    @property
    def graph(self) -> Graph:
        """This session's part of the ROS graph."""
        if self._graph is None:
            raise NotInitializedException("the context has no graph")
        return self._graph

    def add_waker(self, waker: Any) -> None:
        """Call `waker.wake()` on a signal and at the end of the session; a weak reference."""
        self._wakers.add(waker)

    def wake(self) -> None:
        """Make all waits of this session return."""
        for waker in list(self._wakers):
            waker.wake()

    def add_node(self, node: Any) -> None:
        """Register a node, to destroy it at the end of the session."""
        with self._lock:
            if not self._ok:
                raise NotInitializedException("cannot create node")
            self._nodes.add(node)

    def remove_node(self, node: Any) -> None:
        """Unregister a destroyed node."""
        with self._lock:
            self._nodes.discard(node)


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_default_context: Context | None = None
_default_lock = threading.Lock()


def get_default_context(*, shutting_down: bool = False) -> Context:
    """Return the process's default context; with `shutting_down` the next call returns a new one."""
    global _default_context
    with _default_lock:
        context = _default_context or Context()
        _default_context = None if shutting_down else context
        return context


@atexit.register
def _close_all() -> None:
    # Cyclone's threads must end before the interpreter unloads the binding.
    for context in list(_contexts):
        context.try_shutdown()


def _domain_id(given: int | None) -> int:
    text = os.environ.get("ROS_DOMAIN_ID", "").strip()
    name = "domain_id" if given is not None else "ROS_DOMAIN_ID"
    try:
        domain = given if given is not None else int(text or "0")
    except ValueError:
        raise ValueError(f"{name} must be an integer from 0 to {dds.MAX_DOMAIN_ID}, not {text!r}") from None
    if not 0 <= domain <= dds.MAX_DOMAIN_ID:
        raise ValueError(f"{name} must be an integer from 0 to {dds.MAX_DOMAIN_ID}, not {domain}")
    return domain


def _configuration() -> tuple[str | None, str, bool, str]:
    """Return Cyclone's configuration (None if CYCLONEDDS_URI sets it), a description of the network, whether only `lo`
    is used, and a description of how large messages are sent.
    """
    uri = os.environ.get("CYCLONEDDS_URI")
    if uri:
        return None, f"configured by CYCLONEDDS_URI ({uri:.200})", False, ""
    given = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").strip().upper()
    wanted = given or "LOCALHOST"
    if wanted == "OFF":
        raise UnsupportedError(
            "the standalone runtime cannot turn discovery off (ROS_AUTOMATIC_DISCOVERY_RANGE=OFF): two processes of "
            f"one machine could not find each other; choose one of {', '.join(_RANGES)}"
        )
    if wanted not in _RANGES:
        raise ValueError(f"ROS_AUTOMATIC_DISCOVERY_RANGE must be one of {', '.join(_RANGES)}, not {wanted!r}")
    loopback = wanted == "LOCALHOST"
    network = "loopback only (lo)" if loopback else "loopback (lo) and the local network's interface"
    if not given:
        network += "; set ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET to use the local network"
    buffer = transport.receive_buffer()
    return transport.configuration(buffer, subnet=not loopback), network, loopback, buffer.description()
