"""The process of the node: command line, executor, signals, exit. SIGINT and SIGTERM end it with exit code 0."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any, NoReturn

import rclpy
from rclpy.exceptions import ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.ros.middleware import configure
from multi_dnn_ros.ros.node import NODE_NAME, MultiDnnNode
from multi_dnn_ros.ros.service_status import ServiceManager, ServiceStatus
from multi_dnn_ros.serving import engine_main
from multi_dnn_ros.serving.memory import configure_malloc, return_free_memory_every
from multi_dnn_ros.serving.thread_switching import short_switch_interval
from multi_dnn_ros.settings.params_sections import files_in, read_sections, require_parameters_in_any

#: Maximum delay until a signal is noticed while no callback runs.
_POLL_S = 0.1
#: Maximum time to send pending responses of services before exit.
_RESPONSE_S = 0.2
#: Period of returning free memory to the system. Mapping the pages that are needed again takes about a millisecond per
#: minute.
_FREE_MEMORY_S = 60.0
#: Consecutive failing callbacks after which the node ends.
_MAX_ERRORS = 100


def run(args: list[str] | None = None) -> int:
    """Run the node until a signal ends it. Returns the exit code: 1 if threads hang, else 0.

    Raises ParamsFileError: a parameter file is missing, empty or not YAML, or none of them has parameters for the node.
    Raises CommandError: the command line, or a parameter of rclpy such as use_sim_time, is invalid. Raises the last
    error if _MAX_ERRORS callbacks in a row fail.
    """
    params_files = files_in(sys.argv if args is None else args)
    for file in params_files:  # rclpy's errors do not name the node, and it accepts an empty file
        read_sections(file, NODE_NAME)
    stop = _StopSignal()
    configure_malloc()
    return_free_memory_every(_FREE_MEMORY_S)
    # The garbage collections at interpreter exit would take more than a second on PyTorch's objects.
    atexit.register(gc.freeze)
    with short_switch_interval():
        code = _run(args, params_files, stop)
    if engine_main.is_loading():  # with `isolation: none`
        _exit_at_once(code)
    return code


def _run(args: list[str] | None, params_files: list[str], stop: _StopSignal) -> int:
    try:
        middleware = configure()
        # rclpy's handlers would shut the context down at once, and frames in progress could not be published.
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # invalid command line or parameter file, for which rclpy raises several types
        raise CommandError(f"rclpy cannot start ({type(error).__name__}): {error}") from error
    node: MultiDnnNode | None = None
    forward: logging.Handler | None = None
    log = logging.getLogger("multi_dnn_ros")
    service: ServiceStatus | None = None
    executor = SingleThreadedExecutor()
    try:
        try:
            node = MultiDnnNode()
        except ParameterException as error:  # of rclpy's own parameters, such as use_sim_time
            raise CommandError(str(error)) from error
        stop.node = node
        # Only now, because remaps may change the name of the node.
        for warning in require_parameters_in_any(params_files, node.get_fully_qualified_name()):
            node.get_logger().warning(warning)
        node.get_logger().info(middleware)
        forward = _RosLog(node.get_logger())
        log.addHandler(forward)
        log.setLevel(int(node.get_logger().get_effective_level()))  # Python and rclpy number the levels alike
        manager = ServiceManager.from_environment()
        if manager is not None:
            service = ServiceStatus(manager, node.service_state, autostart=node.autostart)
        executor.add_node(node)
        _spin(executor, node, stop, service)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        stop.ending = True
        if node is not None:
            reason = "shutting down"
            if stop.number is not None:
                reason = f"received {signal.Signals(stop.number).name}, shutting down"
                node.get_logger().info(reason)
            if service is not None:
                service.stopping(reason)
            node.close()
            _send_responses(executor, node)
        if node is not None:
            executor.remove_node(node)
            node.destroy_node()
        executor.shutdown()
        if forward is not None:
            log.removeHandler(forward)
            log.setLevel(logging.NOTSET)
        rclpy.try_shutdown()
        stop.restore()
    return 1 if node is not None and node.hung else 0


def _spin(
    executor: SingleThreadedExecutor, node: MultiDnnNode, stop: _StopSignal, service: ServiceStatus | None
) -> None:
    errors = 0
    while stop.number is None and rclpy.ok():
        try:
            executor.spin_once(timeout_sec=_POLL_S)
            errors = 0
        except ExternalShutdownException:
            raise
        except Exception:  # raised by a callback
            errors += 1
            follows = "the node keeps running"
            if errors >= _MAX_ERRORS:
                follows = f"the node ends after {errors} failures in a row"
            node.get_logger().error(f"a callback failed; {follows}: {traceback.format_exc()}")
            if errors >= _MAX_ERRORS:
                raise
        if service is not None:
            service.update()


def _exit_at_once(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _send_responses(executor: SingleThreadedExecutor, node: MultiDnnNode) -> None:
    """Send the pending responses of services, such as to the client of a transition that the signal has cancelled."""
    end = time.monotonic() + _RESPONSE_S
    while node.pending_responses and rclpy.ok() and time.monotonic() < end:
        executor.spin_once(timeout_sec=_RESPONSE_S / 10)


class _StopSignal:
    """Handles SIGINT and SIGTERM: stores the first one, which also interrupts the start of the node.

    Further signals are ignored, because a terminal and a launcher may both send one, and ending takes a bounded time.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.ending = False
        self.node: MultiDnnNode | None = None
        self._before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        except ValueError:
            pass  # only the main thread can handle signals

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None or self.ending:
            return
        self.number = number
        if self.node is None:
            raise KeyboardInterrupt


class _RosLog(logging.Handler):
    """Passes Python log records of this package to the logger of the node."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        # rclpy allows only one level per calling line.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)
