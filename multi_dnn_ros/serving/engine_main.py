"""The engine process, started by :class:`multi_dnn_ros.serving.engine_process.EngineProcess` only.

It speaks with the node's process over a socket pair (:mod:`multi_dnn_ros.serving.wire`), reads images where they lie in
shared memory, and tells on the board what it computes. It never imports rclpy and opens no network socket.

Threads: the main thread configures (torch.export crashes in a second thread of a process, and it may get a low
priority); one receives, and ends the process when the node's process is gone; one beats on the board; one reports
memory; the engine's.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pkgutil
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.thread_names import name_threads
from multi_dnn_ros.common.thread_switching import short_switch_interval
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.board import Board
from multi_dnn_ros.serving.host import Progress
from multi_dnn_ros.serving.parent import EXIT_ORPHANED
from multi_dnn_ros.serving.setup import EXIT_DEVICE_FAILED, EXIT_ERROR, Setup
from multi_dnn_ros.serving.slots import SlotMemory
from multi_dnn_ros.serving.to_node import Answers, BoardObserver, ChannelLog, die
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.serving.served_engine import ServedEngine

_BEAT_S = 0.1
_REPORT_S = 1.0
#: Nice value of a process that configures while another one serves; children that compile inherit it.
_BACKGROUND_NICE = 19


def main(argument: str) -> NoReturn:
    """Run until the node's process says so, or is gone. argument: the Setup."""
    setup = Setup.from_json(argument)
    faulthandler.enable(all_threads=False)  # where a crash happened, on stderr
    threading.current_thread().name = "configure"
    connected = socket.socket(fileno=setup.channel)
    os.register_at_fork(after_in_child=connected.close)  # a child must not keep the connection open after our end
    channel = wire.Channel(connected)
    board = Board(setup.dnns, setup.board)
    try:
        with short_switch_interval():
            EngineMain(setup, channel, board).run()
    except ConnectionError:  # the other end is gone
        os._exit(EXIT_ORPHANED)
    except BaseException as error:
        traceback.print_exc()
        die(channel, f"an error in the engine process: {type(error).__name__}: {summarize_error(error)}", EXIT_ERROR)


class EngineMain:
    """The inside of the process. Made before PyTorch is imported."""

    def __init__(self, setup: Setup, channel: wire.Channel, board: Board) -> None:
        self._channel = channel
        self._board = board
        self._modules = setup.modules
        self._slots = {pool.layout.camera: SlotMemory(pool.layout, pool.fd) for pool in setup.pools}
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the main thread
        self._config: NodeConfig | None = None
        self._pipeline: Pipeline | None = None
        self._engine: ServedEngine | None = None
        self._device: torch.device | None = None
        self._answers = Answers(channel, self._slots)
        self._stopping: threading.Thread | None = None

    def run(self) -> NoReturn:
        """In the main thread."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        # Before the imports: who starts us may end, or end us, meanwhile.
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        logging.getLogger("multi_dnn_ros").addHandler(ChannelLog(self._channel))
        # The imports that take seconds.
        from multi_dnn_ros.serving import configure, served_engine  # noqa: F401

        for name in self._modules:
            found = pkgutil.resolve_name(name)
            if callable(found):
                found()

        threading.Thread(target=self._report, name="report", daemon=True).start()
        self._channel.send(wire.Ready({**configure.library_versions(), "Python": sys.version.split()[0]}))
        while True:
            self._tasks.get()()

    # -- messages

    def _receive(self) -> None:
        handlers: dict[type, Callable[[Any], None]] = {
            wire.Offer: self._on_offer,
            wire.Update: self._on_update,
            wire.Start: self._on_start,
            wire.Stop: self._on_stop,
            wire.Check: lambda message: self._tasks.put(lambda: self._check(message)),
            wire.Configure: lambda message: self._tasks.put(lambda: self._configure(message)),
            wire.Quit: lambda message: os._exit(0),
        }
        try:
            while True:
                message = self._channel.receive()
                handlers[type(message)](message)
                message = None
        except (EOFError, ConnectionError):
            os._exit(EXIT_ORPHANED)
        except BaseException as error:
            traceback.print_exc()
            die(self._channel, f"a message could not be handled: {type(error).__name__}: {error}", EXIT_ERROR)

    def _on_offer(self, offer: wire.Offer) -> None:
        engine = self._engine
        if engine is None:
            for dnn in offer.dnns:
                self._channel.send(wire.Lost(offer.number, dnn, DropReason.SHUTDOWN, "the engine is not started"))
            return
        image = self._slots[offer.camera].image(offer.slot, offer.height, offer.width)
        self._answers.expect(offer)
        engine.offer(
            offer.number,
            offer.camera,
            image,
            stamp_ns=offer.stamp_ns,
            received_ns=offer.received_ns,
            decode_ns=offer.decode_ns,
            dnns=offer.dnns,
        )

    def _on_update(self, update: wire.Update) -> None:
        from multi_dnn_ros.serving.served_engine import set_runtime

        if self._config is None or update.dnn not in self._config.dnns:
            return
        set_runtime(self._config, self._pipeline, update.dnn, update.name, update.value)
        if self._engine is not None:
            self._engine.update(update.dnn, update.name, update.value)

    def _on_start(self, start: wire.Start) -> None:
        from multi_dnn_ros.serving.served_engine import ServedEngine, set_runtime

        if self._pipeline is None or self._config is None:
            raise RuntimeError("Start before Configured")
        if self._stopping is not None:
            self._stopping.join()  # takes the time-out of its Stop at most
        for dnn, values in start.runtime.items():
            if dnn in self._config.dnns:
                for name, value in values.items():
                    set_runtime(self._config, self._pipeline, dnn, name, value)
        self._answers = Answers(self._channel, self._slots)  # the numbers begin again
        observer = BoardObserver(self._board, self._channel)
        self._engine = ServedEngine(self._pipeline, self._config, self._answers, observer)
        self._channel.send(wire.Started())

    def _on_stop(self, stop: wire.Stop) -> None:
        engine, self._engine = self._engine, None

        def finish() -> None:
            hanging = engine.stop(stop.timeout_s) if engine is not None else []
            self._channel.send(wire.Stopped(tuple(hanging)))

        # In a thread of its own: this one has to notice that the node's process ends.
        self._stopping = threading.Thread(target=self._guarded, args=(finish,), name="stop", daemon=True)
        self._stopping.start()

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except ConnectionError:
            os._exit(EXIT_ORPHANED)
        except BaseException as error:
            traceback.print_exc()
            die(self._channel, f"{function.__name__}: {type(error).__name__}: {error}", EXIT_ERROR)

    # -- in the main thread

    def _check(self, check: wire.Check) -> None:
        from multi_dnn_ros.pipeline.settings_check import check_settings

        self._channel.send(wire.Checked(tuple(check_settings(check.config).problems)))

    def _configure(self, order: wire.Configure) -> None:
        from multi_dnn_ros.backends.device_errors import is_device_failure
        from multi_dnn_ros.serving.configure import configure, refusal

        _set_nice(_BACKGROUND_NICE if order.in_background else 0)

        def tell(progress: Progress) -> None:
            self._channel.send(wire.Progressed(progress))

        try:
            pipeline, description = configure(order.config, order.dnns, order.build, tell, judge=order.judge)
        except Exception as error:
            if is_device_failure(error):
                die(self._channel, f"while configuring: {summarize_error(error)}", EXIT_DEVICE_FAILED)
            text, expected = refusal(error)
            self._channel.send(wire.Refused(text, expected))
            return
        part = {name: order.config.dnns[name] for name in order.dnns}
        self._config = order.config.model_copy(update={"dnns": part}).model_copy(deep=True)
        self._pipeline, self._device = pipeline, pipeline.device
        self._channel.send(wire.Configured(description))

    # -- signs of life

    def _beat(self) -> None:
        while True:
            self._board.beat(time.monotonic_ns())
            time.sleep(_BEAT_S)

    def _report(self) -> None:
        import torch

        from multi_dnn_ros.serving.memory_use import memory_use

        cpu = torch.device("cpu")

        def report() -> None:
            while True:
                name_threads()
                engine = self._engine
                ended = tuple(engine.ended()) if engine is not None else ()
                self._channel.send(wire.Memory(memory_use(self._device or cpu), ended))
                time.sleep(_REPORT_S)

        self._guarded(report)


def _set_nice(nice: int) -> None:
    """Of the calling thread, and of threads and processes that it starts from now on."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError:  # only root may take back a low priority
        logging.getLogger(__name__).info("the priority of configuring stays as it is")
