"""The node's process: from the command line to the last flush, ended by SIGINT or SIGTERM with exit code 0."""

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
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from multi_dnn_ros.common.allocator import configure_malloc
from multi_dnn_ros.common.thread_switching import short_switch_interval
from multi_dnn_ros.ros.middleware import configure
from multi_dnn_ros.ros.node import NODE_NAME, MultiDnnNode
from multi_dnn_ros.settings.params_sections import files_in, read_sections, require_parameters_in_any

#: How late a signal may be noticed while nothing else happens.
_POLL_S = 0.1
#: Longest wait for the answers to clients at the end.
_ANSWER_S = 0.2
#: Callbacks that raise one after another without any that works in between.
_MAX_ERRORS = 100


def run(args: list[str] | None = None) -> int:
    """Run the node until a signal ends it. 0: ended as asked; 1: could not start, or threads of it hang.

    ParamsFileError: a parameter file of the command line is missing, empty or no YAML, or none of them holds anything
    for the node.
    """
    params_files = files_in(sys.argv if args is None else args)
    for file in params_files:  # rclpy's own errors name no node, and it takes an empty file
        read_sections(file, NODE_NAME)
    stop = _StopSignal()
    configure_malloc()
    # The interpreter ends with collections, which go through all that PyTorch brought, for a second and more.
    atexit.register(gc.freeze)
    with short_switch_interval():
        code = _run(args, params_files, stop)
    local_host = sys.modules.get("multi_dnn_ros.serving.local_host")  # with `isolation: none`
    if local_host is not None and local_host.is_loading():
        _exit_at_once(code)
    return code


def _run(args: list[str] | None, params_files: list[str], stop: _StopSignal) -> int:
    try:
        middleware = configure()
        # rclpy's own handlers would shut the context down at once, and what is under way could not be published.
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except KeyboardInterrupt:
        return 0
    except Exception as error:  # a bad command line or parameter file; rclpy has several types for it
        print(f"multi_dnn_node: {error}", file=sys.stderr)
        return 1
    node: MultiDnnNode | None = None
    forward: logging.Handler | None = None
    executor = SingleThreadedExecutor()
    try:
        node = MultiDnnNode(middleware=middleware)
        stop.node = node
        # Only now: remaps decide what the node is called.
        for warning in require_parameters_in_any(params_files, node.get_fully_qualified_name()):
            node.get_logger().warning(warning)
        node.get_logger().info(middleware.text)
        forward = _RosLog(node.get_logger())
        logging.getLogger("multi_dnn_ros").addHandler(forward)
        executor.add_node(node)
        _spin(executor, node, stop)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        stop.ending = True
        if node is not None:
            if stop.number is not None:
                node.get_logger().info(f"{signal.Signals(stop.number).name}: ending")
            node.close()
            _answer(executor, node)
            executor.remove_node(node)
            node.destroy_node()
        executor.shutdown()
        if forward is not None:
            logging.getLogger("multi_dnn_ros").removeHandler(forward)
        rclpy.try_shutdown()
        stop.restore()
    return 1 if node is not None and node.hung else 0


def _spin(executor: SingleThreadedExecutor, node: MultiDnnNode, stop: _StopSignal) -> None:
    errors = 0
    while stop.number is None and rclpy.ok():
        try:
            executor.spin_once(timeout_sec=_POLL_S)
            errors = 0
        except ExternalShutdownException:
            raise
        except Exception:  # rclpy raises here what a callback raised: a transition asked for in the wrong state, say
            errors += 1
            node.get_logger().error(f"a callback failed: {traceback.format_exc()}")
            if errors >= _MAX_ERRORS:
                raise


def _exit_at_once(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answer(executor: SingleThreadedExecutor, node: MultiDnnNode) -> None:
    """Send what clients wait for whose transition the signal has cancelled."""
    end = time.monotonic() + _ANSWER_S
    while node.unanswered and rclpy.ok() and time.monotonic() < end:
        executor.spin_once(timeout_sec=_ANSWER_S / 10)


class _StopSignal:
    """SIGINT and SIGTERM: the first one is noted, and breaks off the start of the node.

    Further ones change nothing: ending takes a bounded time, and a terminal and a launcher may both send one.
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
            pass  # not the main thread: whoever has it handles signals

    def restore(self) -> None:
        """Put the former handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None or self.ending:
            return
        self.number = number
        if self.node is None:
            raise KeyboardInterrupt


class _RosLog(logging.Handler):
    """Python's log records of this package into the node's log."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        # rclpy ties a level to the line of the call: one call each.
        if record.levelno >= logging.ERROR:
            self._logger.error(text)
        elif record.levelno >= logging.WARNING:
            self._logger.warning(text)
        elif record.levelno >= logging.INFO:
            self._logger.info(text)
        else:
            self._logger.debug(text)
