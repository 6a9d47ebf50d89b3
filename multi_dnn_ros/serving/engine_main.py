"""The program of an engine process, started by :class:`multi_dnn_ros.serving.engine_process.EngineProcess`.

It exchanges messages with the node's process over a socket pair (:mod:`multi_dnn_ros.serving.wire`), reads images from
shared memory (:mod:`multi_dnn_ros.serving.slots`) and writes its running jobs to shared memory
(:mod:`multi_dnn_ros.serving.shared_status`). It never imports rclpy and opens no network socket.

Threads: the main thread configures, because torch.export crashes in a second thread of a process. `receive` handles
messages, and ends the process when the node's process has ended. `heartbeat` writes the heartbeat. `report` sends the
memory use. `stop` stops the engine. The other threads are the engine's.
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
from typing import TYPE_CHECKING, Any, NoReturn

from multi_dnn_ros.common.environment import with_memory_limit
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.jpeg_file import FrameImage, JpegFile
from multi_dnn_ros.common.parent_process import EXIT_ORPHANED
from multi_dnn_ros.common.thread_priority import keep_priority
from multi_dnn_ros.common.thread_switching import short_switch_interval
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.channel import Channel
from multi_dnn_ros.serving.engine_reports import ChannelLogHandler, OutcomeSender, StatusObserver, exit_with_cause
from multi_dnn_ros.serving.host import Progress
from multi_dnn_ros.serving.process_arguments import EXIT_DEVICE_FAILED, EXIT_ERROR, ProcessArguments
from multi_dnn_ros.serving.process_priority import (
    current_nice,
    lower_process_priority,
    lower_thread_priority,
    nice_increment,
)
from multi_dnn_ros.serving.shared_status import SharedStatus
from multi_dnn_ros.serving.slots import SlotMemory
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.serving.served_engine import ServedEngine

_HEARTBEAT_S = 0.1
_REPORT_S = 1.0
#: Nice value of a thread that configures while another process serves; compilers that it starts inherit it.
_BACKGROUND_NICE = 19


def main(argument: str) -> NoReturn:
    """Run until the node's process ends, or ends this process. argument: ProcessArguments as JSON."""
    arguments = ProcessArguments.from_json(argument)
    faulthandler.enable(all_threads=False)  # writes the stack of a crash to stderr
    threading.current_thread().name = "configure"
    connected = socket.socket(fileno=arguments.channel)
    os.register_at_fork(after_in_child=connected.close)  # a child must not keep the connection open
    channel = Channel(connected)
    status = SharedStatus(arguments.dnns, arguments.status)
    try:
        with short_switch_interval():
            EngineMain(arguments, channel, status).run()
    except ConnectionError:  # the node's process has ended
        os._exit(EXIT_ORPHANED)
    except BaseException as error:
        text = f"an error in the engine process: {type(error).__name__}: {summarize_error(error)}"
        cause = with_memory_limit(text)
        if cause == text:  # otherwise the place of the error does not matter
            traceback.print_exc()
        exit_with_cause(channel, cause, EXIT_ERROR)


class EngineMain:
    """Handles the messages of the node's process. Created before PyTorch is imported."""

    def __init__(self, arguments: ProcessArguments, channel: Channel, status: SharedStatus) -> None:
        self._channel = channel
        self._status = status
        self._modules = arguments.modules
        self._log_level = arguments.log_level
        self._slots = {pool.layout.camera: SlotMemory(pool.layout, pool.fd) for pool in arguments.pools}
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # for the main thread
        self._config: NodeConfig | None = None
        self._pipeline: Pipeline | None = None
        self._engine: ServedEngine | None = None
        self._device: torch.device | None = None
        self._outcomes = OutcomeSender(channel, self._slots)
        self._stopping: threading.Thread | None = None
        self._node_nice = current_nice()  # inherited

    def run(self) -> NoReturn:
        """The main thread."""
        threading.Thread(target=self._write_heartbeats, name="heartbeat", daemon=True).start()
        # Before the imports: the node's process may end during them.
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        log = logging.getLogger("multi_dnn_ros")
        log.addHandler(ChannelLogHandler(self._channel))
        log.setLevel(self._log_level)
        # These imports take seconds.
        from multi_dnn_ros.serving import configure, served_engine  # noqa: F401

        for name in self._modules:
            found = pkgutil.resolve_name(name)
            if callable(found):
                found()

        threading.Thread(target=self._send_reports, name="report", daemon=True).start()
        import cv2  # only here: processes without images start sooner

        cv2.setNumThreads(1)  # an image that OpenCV decodes must not occupy all cores
        self._channel.send(wire.Ready())
        while True:
            self._tasks.get()()

    # -- the receive thread

    def _receive(self) -> None:
        try:
            while True:
                self._handle(self._channel.receive())
        except (EOFError, ConnectionError):
            os._exit(EXIT_ORPHANED)
        except BaseException as error:
            traceback.print_exc()
            cause = f"a message could not be handled: {type(error).__name__}: {error}"
            exit_with_cause(self._channel, cause, EXIT_ERROR)

    def _handle(self, message: wire.ToEngine) -> None:
        if isinstance(message, wire.Offer):
            self._on_offer(message)
        elif isinstance(message, wire.Update):
            self._on_update(message)
        elif isinstance(message, wire.Start):
            self._on_start(message)
        elif isinstance(message, wire.Stop):
            self._on_stop(message)
        elif isinstance(message, wire.Place):
            self._tasks.put(partial(self._place, message))
        elif isinstance(message, wire.Configure):
            self._tasks.put(partial(self._configure, message))
        else:
            wire.unhandled(message)

    def _on_offer(self, offer: wire.Offer) -> None:
        engine = self._engine
        if engine is None:
            for dnn in offer.dnns:
                dropped = wire.FrameDropped(offer.number, dnn, DropReason.SHUTDOWN, "the engine is not started")
                self._channel.send(dropped)
            return
        slots = self._slots[offer.camera]
        image: FrameImage
        if offer.jpeg_bytes:
            image = JpegFile(slots.file(offer.slot, offer.jpeg_bytes), offer.height, offer.width)
        else:
            image = slots.image(offer.slot, offer.height, offer.width)
        self._outcomes.expect(offer)
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
            self._stopping.join()  # bounded by the timeout of its Stop
        for dnn, values in start.runtime.items():
            if dnn in self._config.dnns:
                for name, value in values.items():
                    set_runtime(self._config, self._pipeline, dnn, name, value)
        self._outcomes = OutcomeSender(self._channel, self._slots)  # the numbers of frames start again
        observer = StatusObserver(self._status, self._channel)
        self._engine = ServedEngine(self._pipeline, self._config, self._outcomes, observer)
        self._channel.send(wire.Started())

    def _on_stop(self, stop: wire.Stop) -> None:
        engine, self._engine = self._engine, None

        def finish() -> None:
            hanging = engine.stop(stop.timeout_s) if engine is not None else []
            self._channel.send(wire.Stopped(tuple(hanging)))

        # In a separate thread, because this one has to notice the end of the node's process.
        self._stopping = threading.Thread(target=self._run_or_exit, args=("stopping", finish), name="stop", daemon=True)
        self._stopping.start()

    def _run_or_exit(self, activity: str, function: Callable[[], None]) -> None:
        """Run a thread's function; an error in it ends the process."""
        try:
            function()
        except ConnectionError:
            os._exit(EXIT_ORPHANED)
        except BaseException as error:
            traceback.print_exc()
            cause = f"an error while {activity}: {type(error).__name__}: {error}"
            exit_with_cause(self._channel, cause, EXIT_ERROR)

    # -- the main thread

    def _place(self, request: wire.Place) -> None:
        from multi_dnn_ros.serving.place import place

        self._answer(lambda report: wire.Placed(place(request.config, request.build, report)))

    def _answer(self, function: Callable[[Callable[[Progress], None]], Any]) -> None:
        """Send what `function` returns, or Refused. It is called with a function that sends its progress."""
        from multi_dnn_ros.serving.configure import describe_failure

        try:
            answer = function(lambda step: self._channel.send(wire.Progressed(step)))
        except Exception as error:
            answer = wire.Refused(*describe_failure(error))
        self._channel.send(answer)

    def _configure(self, request: wire.Configure) -> None:
        from multi_dnn_ros.backends.device_errors import is_device_failure
        from multi_dnn_ros.serving.configure import configure, describe_failure

        if request.in_background:
            keep_priority()  # for the threads of ONNX Runtime, which run the DNNs later
            lower_thread_priority(_BACKGROUND_NICE)

        def send_progress(progress: Progress) -> None:
            self._channel.send(wire.Progressed(progress))

        try:
            pipeline, description = configure(
                request.config,
                request.dnns,
                request.build,
                send_progress,
                measure_capacity=request.measure_capacity,
                timed=request.timed,
            )
        except Exception as error:
            if is_device_failure(error):
                exit_with_cause(self._channel, f"while configuring: {summarize_error(error)}", EXIT_DEVICE_FAILED)
            text, expected = describe_failure(error)
            self._channel.send(wire.Refused(text, expected))
            return
        part = {name: request.config.dnns[name] for name in request.dnns}
        self._config = request.config.model_copy(update={"dnns": part}).model_copy(deep=True)
        self._pipeline, self._device = pipeline, pipeline.device
        increment = nice_increment(pipeline.device.type, request.config.engine_nice)
        if increment:
            lower_process_priority(self._node_nice, increment)
        self._channel.send(wire.Configured(description))

    # -- the other threads

    def _write_heartbeats(self) -> None:
        while True:
            self._status.set_heartbeat(time.monotonic_ns())
            time.sleep(_HEARTBEAT_S)

    def _send_reports(self) -> None:
        import torch

        from multi_dnn_ros.serving.memory_use import memory_use

        cpu = torch.device("cpu")

        def send_reports() -> None:
            while True:
                engine = self._engine
                ended = tuple(engine.failed_threads()) if engine is not None else ()
                self._channel.send(wire.Report(memory_use(self._device or cpu), ended))
                time.sleep(_REPORT_S)

        self._run_or_exit("reporting memory and threads", send_reports)
