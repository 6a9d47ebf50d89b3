"""The process of the node: command line, executor, reports to systemd, exit code 0 after SIGINT and SIGTERM."""

from __future__ import annotations

import atexit
import gc
import itertools
import logging
import os
import signal
import socket
import sys
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor, TimeoutException
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.signals import SignalHandlerOptions

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.ros.middleware import configure
from multi_dnn_ros.ros.node import MultiDnnNode
from multi_dnn_ros.serving import engine_main
from multi_dnn_ros.serving.process_settings import configure_malloc, return_free_memory_every, short_switch_interval
from multi_dnn_ros.settings.params_file import read_sections, require_parameters

#: Maximum delay until a signal is noticed while no callback runs.
_POLL_S = 0.1
#: Period of returning free memory to the system.
_FREE_MEMORY_S = 60.0
#: Maximum period of the messages to systemd, their longest text (systemd ignores more than 4096 bytes), and the time
#: that they ask for while configuring, which may take minutes.
_STATUS_PERIOD_S, _MAX_TEXT, _EXTEND_S = 1.0, 1000, 30.0
log = logging.getLogger(__name__)


def run(args: list[str] | None = None) -> int:
    """Run the node until a signal ends it. Returns the exit code: 0.

    Raises ParameterError: a parameter file is missing, empty or not YAML, or none of them has parameters for the node.
    Raises CommandError: the command line, or a parameter of rclpy such as use_sim_time, is invalid.
    """
    words = sys.argv if args is None else args
    params_files = [file for option, file in itertools.pairwise(words) if option == "--params-file"]
    for file in params_files:  # rclpy accepts an empty file, and does not say in which line an error is
        read_sections(file)
    stop = _StopSignal()
    configure_malloc()
    return_free_memory_every(_FREE_MEMORY_S)
    # The garbage collections at interpreter exit would take more than a second on PyTorch's objects.
    atexit.register(gc.freeze)
    with short_switch_interval():
        hung = _run(args, params_files, stop)
    if hung or engine_main.is_loading():  # the latter with `isolation: none`
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if hung else 0)
    return 0


def _run(args: list[str] | None, params_files: list[str], stop: _StopSignal) -> bool:
    """Whether threads hang."""
    try:
        middleware = configure()
        # rclpy's handlers would shut the context down at once, and frames in progress could not be published.
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except KeyboardInterrupt:
        return False
    except Exception as error:  # invalid command line or parameter file, for which rclpy raises several types
        raise CommandError(f"rclpy cannot start ({type(error).__name__}): {error}") from error
    node: MultiDnnNode | None = None
    service: ServiceStatus | None = None
    executor = SingleThreadedExecutor()
    try:
        node = MultiDnnNode()
        stop.node = node
        # Only now, because remaps may change the name of the node.
        for warning in require_parameters(params_files, node.get_fully_qualified_name()):
            node.get_logger().warning(warning)
        node.get_logger().info(middleware)
        package_log = logging.getLogger("multi_dnn_ros")
        package_log.addHandler(_RosLog(node.get_logger()))
        package_log.setLevel(int(node.get_logger().get_effective_level()))
        service = ServiceStatus(node)
        executor.add_node(node)
        _spin(executor, node, stop)
    except ParameterException as error:  # of rclpy's own parameters, such as use_sim_time
        raise CommandError(str(error)) from error
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        stop.number = stop.number or 0  # no further signal counts
        if node is not None:
            cause = f"received {signal.Signals(stop.number).name}, " if stop.number else ""
            node.get_logger().info(reason := f"{cause}shutting down")
            if service is not None:
                service.stopping(reason)
            node.close()
            executor.shutdown(timeout_sec=0.0)
            node.destroy_node()
        rclpy.try_shutdown()
    return node is not None and node.hangs


def _spin(executor: SingleThreadedExecutor, node: MultiDnnNode, stop: _StopSignal) -> None:
    """Run the node's callbacks in this thread, and transitions, which may take minutes, in a second one.

    rclpy's MultiThreadedExecutor would delay images by 2 ms, and 6 ms at the 95th percentile (two CPU cores).
    """
    transitions = ThreadPoolExecutor(1, thread_name_prefix="transition")
    transition: Future[None] | None = None
    try:
        while stop.number is None and rclpy.ok():
            try:
                callback, entity, _ = executor.wait_for_ready_callbacks(timeout_sec=_POLL_S)
            except TimeoutException:
                continue
            except rclpy_implementation.InvalidHandle as error:  # a transition destroyed what the executor waited for
                node.get_logger().debug(f"rclpy: {error}")
                continue
            if node.is_transition(entity) and (transition is None or transition.done()):
                transition = transitions.submit(_call, callback, node)
            else:  # also a request during a transition, which rclpy refuses at once
                _call(callback, node)
    except ShutdownException:
        pass
    finally:
        transitions.shutdown(wait=False)


def _call(callback: Any, node: MultiDnnNode) -> None:
    """Run a callback as the executor returned it."""
    callback()
    if (error := callback.exception()) is not None:
        text = "".join(traceback.format_exception(error))
        node.get_logger().error(f"a callback failed; the node keeps running: {text}")


class ServiceStatus:
    """The messages of one node to systemd (sd_notify), if NOTIFY_SOCKET is set.

    A timer of the executor sends them: if a callback blocks, the heartbeats stop. With the parameter `autostart` the
    service is ready when the node is active, otherwise at once, because another process configures it.
    """

    def __init__(self, node: MultiDnnNode) -> None:
        self._node = node
        names = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
        address, period_us, pid = (os.environ.pop(name, "") for name in names)  # child processes must not use them
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watches = period_us.isdigit() and pid in ("", str(os.getpid()))
        self._ready = self._warned = False
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)  # a manager that does not read must not block the service
            period_s = min(_STATUS_PERIOD_S, int(period_us) / 4e6) if self._watches else _STATUS_PERIOD_S
            node.create_timer(period_s, self._update, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def stopping(self, reason: str) -> None:
        """The node shuts down. reason: one line."""
        self._send(STOPPING=1, STATUS=reason)

    def _update(self) -> None:
        status = self._node.status()
        fields: dict[str, str | int] = {"STATUS": "; ".join(status.text.splitlines())[:_MAX_TEXT]}
        if self._watches:
            fields["WATCHDOG"] = 1
        if not self._ready and status.values["state"] == "configuring":
            fields["EXTEND_TIMEOUT_USEC"] = round(_EXTEND_S * 1e6)
        if not self._ready and (status.values["state"] == "active" or not self._node.autostart):
            fields["READY"] = 1
        self._ready |= self._send(**fields) and "READY" in fields

    def _send(self, **fields: str | int) -> bool:
        """Send one message, and return whether it was sent. fields: such as READY=1. Logs the first failure."""
        try:
            if self._address:
                message = "\n".join(f"{name}={value}" for name, value in fields.items())
                self._socket.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            if not self._warned:
                log.warning("NOTIFY_SOCKET = %r: a message to systemd could not be sent: %s", self._address, error)
            self._warned = True
            return False
        return True


class _StopSignal:
    """Stores the first SIGINT or SIGTERM, which also interrupts the start of the node; further ones are ignored."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.node: MultiDnnNode | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
            if self.node is None:
                raise KeyboardInterrupt


class _RosLog(logging.Handler):
    """Passes Python log records of this package to the logger of the node."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        # Not by the logger's methods: rclpy allows only one level per calling line. It numbers levels as Python does.
        where = record.funcName or "", record.pathname, record.lineno
        rclpy_implementation.rclpy_logging_rcutils_log(record.levelno, self._logger.name, self.format(record), *where)
