"""The functions of the module `rclpy`: init and shutdown, spinning, creating a node."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from multi_dnn_ros.standalone import signals
from multi_dnn_ros.standalone.arguments import remove_ros_args as _remove_ros_args
from multi_dnn_ros.standalone.context import Context, get_default_context
from multi_dnn_ros.standalone.executors import Executor, SingleThreadedExecutor
from multi_dnn_ros.standalone.futures import Future
from multi_dnn_ros.standalone.node import Node
from multi_dnn_ros.standalone.signals import SignalHandlerOptions

_lock = threading.Lock()
_global_executor: SingleThreadedExecutor | None = None


class InitContextManager:
    """Returned by `init()`: `with rclpy.init():` ends the session with the block."""

    def __init__(self, context: Context, *, installed_handlers: bool) -> None:
        self.context = context
        self._installed_handlers = installed_handlers

    def __enter__(self) -> Context:
        return self.context

    def __exit__(self, *exception: object) -> None:
        try_shutdown(context=self.context, uninstall_handlers=self._installed_handlers)


def init(
    *,
    args: Sequence[str] | None = None,
    context: Context | None = None,
    domain_id: int | None = None,
    signal_handler_options: SignalHandlerOptions | None = None,
) -> InitContextManager:
    """Start a session, on the default context unless another is given.

    SIGINT and SIGTERM end the default context, unless `signal_handler_options` says otherwise. Python allows signal
    handlers in the main thread only, so a call in another thread installs none.
    """
    is_default = context is None or context is get_default_context()
    context = context or get_default_context()
    if signal_handler_options is None:
        signal_handler_options = SignalHandlerOptions.ALL if is_default else SignalHandlerOptions.NO
    context.init(args, domain_id=domain_id)
    signals.install_signal_handlers(signal_handler_options)
    return InitContextManager(context, installed_handlers=signal_handler_options != SignalHandlerOptions.NO)


def ok(*, context: Context | None = None) -> bool:
    """Return whether the session is running."""
    return (context or get_default_context()).ok()


def shutdown(*, context: Context | None = None, uninstall_handlers: bool | None = None) -> None:
    """End a session: destroy its nodes and free all DDS entities.

    Raises:
        RuntimeError: if it is not running, or already shut down.
    """
    _shutdown(context, uninstall_handlers, Context.shutdown)


def try_shutdown(*, context: Context | None = None, uninstall_handlers: bool | None = None) -> None:
    """End a session, unless it has already ended."""
    _shutdown(context, uninstall_handlers, Context.try_shutdown)


def _shutdown(context: Context | None, uninstall_handlers: bool | None, end: Any) -> None:
    global _global_executor
    is_default = context is None or context is get_default_context()
    context = get_default_context(shutting_down=True) if is_default else context
    with _lock:
        executor = _global_executor
        if executor is not None and executor.context is context:
            _global_executor = None
    end(context)
    if uninstall_handlers or (uninstall_handlers is None and is_default):
        signals.uninstall_signal_handlers()


def get_global_executor() -> Executor:
    """Return the executor that the functions below use by default."""
    global _global_executor
    with _lock:
        if _global_executor is None:
            _global_executor = SingleThreadedExecutor()
        return _global_executor


def create_node(node_name: str, **kwargs: Any) -> Node:
    """Create a node; arguments as for `rclpy.node.Node`."""
    return Node(node_name, **kwargs)


def spin(node: Node, executor: Executor | None = None) -> None:
    """Run a node's callbacks until its context is shut down.

    Raises:
        ExternalShutdownException: if the context was shut down, for example by a signal.
    """
    executor = executor or get_global_executor()
    try:
        executor.add_node(node)
        executor.spin()
    finally:
        executor.remove_node(node)


def spin_once(node: Node, *, executor: Executor | None = None, timeout_sec: float | None = None) -> None:
    """Run one callback of a node, or none on timeout."""
    executor = executor or get_global_executor()
    try:
        executor.add_node(node)
        executor.spin_once(timeout_sec)
    finally:
        executor.remove_node(node)


def spin_until_future_complete(
    node: Node, future: Future, executor: Executor | None = None, timeout_sec: float | None = None
) -> None:
    """Run a node's callbacks until the future is done, the timeout expires, or the context is shut down."""
    executor = executor or get_global_executor()
    added = False
    try:
        added = executor.add_node(node)
        executor.spin_until_future_complete(future, timeout_sec)
    finally:
        if added:
            executor.remove_node(node)


def get_rmw_implementation_identifier() -> str:
    """Return the middleware whose conventions this runtime follows."""
    return "rmw_cyclonedds_cpp"


def remove_ros_args(args: Sequence[str] | None = None) -> list[str]:
    """Return a command line (default: `sys.argv`) without its ROS arguments."""
    return _remove_ros_args(sys.argv if args is None else args)
