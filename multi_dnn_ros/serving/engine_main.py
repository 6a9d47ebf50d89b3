"""The program of an engine process, started by :class:`multi_dnn_ros.serving.engine_process.EngineProcess`.

It exchanges messages with the node's process over a socket pair, reads images from shared memory and writes its running
jobs to shared memory. It never imports rclpy and opens no network socket.

Threads: the main thread configures. `receive` handles messages, and ends the process when the node's process has ended.
`heartbeat` writes the heartbeat. `report` sends the memory use. `stop` stops the engine. The others are the engine's.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pkgutil
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.processes import EXIT_ORPHANED
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.engine_state import EngineState
from multi_dnn_ros.serving.local_engine import REPORT_S, LocalEngine
from multi_dnn_ros.serving.memory import with_memory_limit
from multi_dnn_ros.serving.slots import SlotMemory
from multi_dnn_ros.serving.thread_switching import short_switch_interval

_HEARTBEAT_S = 0.1
#: Maximum time for sending the cause of the end.
_ABORT_S = 0.5


def main(descriptor: int) -> NoReturn:
    """Run until the node's process ends, or ends this process. descriptor: of the connection to it."""
    faulthandler.enable(all_threads=False)  # writes the stack of a crash to stderr
    threading.current_thread().name = "configure"
    connected = socket.socket(fileno=descriptor)
    os.register_at_fork(after_in_child=connected.close)  # a child must not keep the connection open
    channel = messages.Channel(connected)

    def run() -> None:
        with short_switch_interval():
            _run(channel)

    _exit_on_error(channel, "in the engine process", run)
    os._exit(messages.EXIT_ERROR)  # not reached


def _run(channel: messages.Channel) -> None:
    """The main thread."""
    begin = channel.receive()
    assert isinstance(begin, messages.Begin)
    state = EngineState(begin.dnns, begin.state)
    tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    slots = {layout.camera: SlotMemory(layout, fd) for layout, fd in begin.pools}
    engine = LocalEngine(
        slots,
        state,
        channel.send,
        tasks.put,
        lambda cause: _exit_with_cause(channel, cause, messages.EXIT_DEVICE_FAILED),
    )

    def beat() -> None:
        while True:
            state.beat()
            time.sleep(_HEARTBEAT_S)

    def receive() -> None:
        while True:
            engine.handle(channel.receive())

    def report() -> None:
        while True:
            channel.send(engine.report(own_process=True))
            time.sleep(REPORT_S)

    def start(name: str, function: Callable[[], None]) -> None:
        target = partial(_exit_on_error, channel, f"in the thread {name}", function)
        threading.Thread(target=target, name=name, daemon=True).start()

    start("heartbeat", beat)
    start("receive", receive)  # before the imports: the node's process may end during them
    log = logging.getLogger("multi_dnn_ros")
    log.addHandler(_ChannelLogHandler(channel))
    log.setLevel(begin.log_level)
    for name in ("multi_dnn_ros.serving.configure", "multi_dnn_ros.engine.engine", *begin.modules):
        found = pkgutil.resolve_name(name)  # these imports take seconds
        if callable(found):
            found()
    import cv2  # only here: it takes a while

    start("report", report)
    cv2.setNumThreads(1)  # an image that OpenCV decodes must not occupy all cores
    channel.send(messages.Ready())
    while True:
        tasks.get()()


class _ChannelLogHandler(logging.Handler):
    """Sends log records to the node's process."""

    def __init__(self, channel: messages.Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send(messages.Logged(record.levelno, record.name, self.format(record)))
        except OSError:
            pass  # the node's process has ended, and this one is about to end
        except Exception:
            self.handleError(record)


def _exit_on_error(channel: messages.Channel, where: str, function: Callable[[], Any]) -> None:
    """Call a thread's function; an error in it ends the process."""
    try:
        function()
    except (ConnectionError, EOFError):  # the node's process has ended
        os._exit(EXIT_ORPHANED)
    except BaseException as error:
        text = f"an error {where}: {type(error).__name__}: {summarize_error(error)}"
        cause = with_memory_limit(text)
        if cause == text:  # otherwise the place of the error does not matter
            traceback.print_exc()
        _exit_with_cause(channel, cause, messages.EXIT_ERROR)


def _exit_with_cause(channel: messages.Channel, cause: str, code: int) -> NoReturn:
    """Send the cause and exit at once, without cleaning up: after a fault any call into the driver may hang."""
    timer = threading.Timer(_ABORT_S, os._exit, (code,))  # another thread may hang while it holds the channel's lock
    timer.daemon = True
    try:
        timer.start()
        channel.send(messages.Aborting(cause))
    except (OSError, RuntimeError):  # the node's process has ended; no thread can be started
        pass
    finally:
        os._exit(code)
