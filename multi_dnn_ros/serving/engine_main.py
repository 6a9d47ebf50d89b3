"""An engine: the program of an engine process, which :mod:`multi_dnn_ros.serving.engine_process` starts.

It gets messages over a socket pair, images in shared memory, and writes its running jobs to shared memory. It never
imports rclpy and opens no network socket. With `isolation: none` it runs in threads of the node's process.

Threads: the main thread configures. `receive` handles messages. `heartbeat` shows that the process runs Python code.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any, NoReturn

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.processes import EXIT_ORPHANED
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.process_settings import release_memory, short_switch_interval, with_memory_limit
from multi_dnn_ros.serving.shared_memory import EngineState, PinnedImages, SlotMemory
from multi_dnn_ros.settings.flat_parameters import assign
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.engine.engine import Engine
    from multi_dnn_ros.serving.tasks import Pipeline

log = logging.getLogger(__name__)

#: Exit code of an engine process that cannot continue; see also multi_dnn_ros.common.processes.
EXIT_FAILED = 70
#: Runtime parameters that are attributes of a DNN's decoder, and those in ms that the engine changes.
_DECODER_PARAMETERS = ("score_threshold", "iou_threshold", "max_detections")
_ENGINE_TIMES = ("deadline_ms", "max_age_ms")
#: Nice value of a thread that configures while another engine serves; compilers that it starts inherit it.
_BACKGROUND_NICE = 19
_HEARTBEAT_S = 0.1
#: Period of reading the memory in use, in heartbeats.
_MEMORY_BEATS = 10
#: Maximum time for sending the cause of the end, and for ending the threads of an engine in the node's process.
_ABORT_S, _CLOSE_S = 0.5, 1.0


class EngineProgram:
    """slots: by camera. run_later: calls a function soon, one at a time and always in the same thread, because
    torch.export crashes in a second thread of a process. fail: called with the cause if the engine cannot continue.
    """

    def __init__(
        self,
        channel: messages.Channel,
        slots: Mapping[str, SlotMemory],
        state: EngineState,
        run_later: Callable[[Callable[[], None]], None],
        fail: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._slots = slots
        self._state = state
        self._run_later = run_later
        self._fail = fail
        self._closed = threading.Event()
        self._starting = threading.Lock()  # an engine must not be started after close()
        self._config: NodeConfig | None = None
        self._pipeline: Pipeline | None = None
        self._engine: Engine | None = None  # once configured
        self._pins: PinnedImages | None = None

    def receive(self) -> NoReturn:
        """Handle messages. Raises Disconnected at the end of the connection, and TypeError for an unknown message."""
        while True:
            message = self._channel.receive()
            if isinstance(message, messages.Offer):
                self._offer(message)
            elif isinstance(message, messages.Update):
                for name, value in message.values.items():
                    self._set(message.dnn, name, value)
            elif isinstance(message, messages.Configure):
                self._run_later(partial(self._configure, message))
            else:
                raise TypeError(f"message {type(message).__name__} is not one to an engine")

    def beat(self) -> None:
        """Write the heartbeat, and at times the memory in use, until :meth:`close`."""
        beats = 0
        while not self._closed.wait(_HEARTBEAT_S if beats else 0.0):
            self._state.beat()
            beats += 1
            engine, pipeline = self._engine, self._pipeline
            if engine is None or pipeline is None or beats % _MEMORY_BEATS:
                continue
            if threads := engine.failed_threads():
                self._fail(f"threads ended with an error: {', '.join(threads)}")
            if pipeline.device.type == "cuda":
                import torch

                device = pipeline.device
                self._state.set_gpu_memory(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))

    def close(self) -> None:
        """Stop and free everything, in the node's process; returns when no thread reads an image any more."""
        with self._starting:
            self._closed.set()
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop(_CLOSE_S)
            while engine.running_threads():
                time.sleep(_HEARTBEAT_S)
        if self._pins is not None:
            self._pins.close()
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            device = pipeline.device
            del pipeline, engine
            release_memory(device)

    # -- configuring

    def _configure(self, request: messages.Configure) -> None:
        from multi_dnn_ros.backends.device_errors import is_device_failure
        from multi_dnn_ros.backends.thread_priority import keep_priority
        from multi_dnn_ros.serving.configure import configure, describe_failure

        background = request.in_background
        if background:
            keep_priority()  # for the threads of ONNX Runtime, which run the DNNs later
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICE)
        dnns = {name: request.config.dnns[name] for name in request.dnns}
        self._config = config = request.config.model_copy(update={"dnns": dnns}).model_copy(deep=True)

        def report(text: str) -> None:
            self._channel.send(messages.Progress(text))

        try:
            pipeline, description = configure(config, request.build, report, measure_capacity=not background)
            self._start(pipeline)
            self._channel.send(description)
        except messages.Disconnected:  # cancelled, in the node's process
            raise
        except (Exception, SystemExit) as error:  # also of a module of another package
            if is_device_failure(error):
                self._fail(f"while configuring: {summarize_error(error)}")
            self._channel.send(messages.Refused(*describe_failure(error)))

    def _start(self, pipeline: Pipeline) -> None:
        """In a function of its own, because after a failure no variable may keep the engine alive."""
        from multi_dnn_ros.engine.engine import Engine

        assert self._config is not None
        engine = Engine(
            pipeline.tasks,
            on_result=self._on_result,
            on_drop=self._on_drop,
            on_failure=self._channel.send,
            workers=pipeline.workers,
            policy=self._config.policy,
            device=pipeline.device,
            observer=self._state,
        )
        with self._starting:
            if self._closed.is_set():  # cancelled, in the node's process
                raise messages.Disconnected
            self._pins = PinnedImages(pipeline.device) if pipeline.device.type == "cuda" else None
            self._pipeline, self._engine = pipeline, engine
            engine.start()

    def _set(self, dnn: str, name: str, value: Any) -> None:
        """Set a runtime parameter in the settings, in the decoder and in the engine. name: without `dnn.<dnn>.`."""
        config, pipeline, engine = self._config, self._pipeline, self._engine
        if config is None or pipeline is None or engine is None or dnn not in config.dnns:
            return
        output, field = assign(config.dnns[dnn], name, value)
        if field in _DECODER_PARAMETERS and output in pipeline.dnns[dnn].outputs:
            setattr(pipeline.dnns[dnn].outputs[output].decoder, field, value)
        elif field == "priority":
            engine.update(dnn, priority=value)
        elif field in _ENGINE_TIMES:
            engine.update(dnn, **{field.replace("_ms", "_ns"): round(value * 1e6)})

    # -- frames

    def _offer(self, offer: messages.Offer) -> None:
        assert self._engine is not None
        image = self._slots[offer.camera].slots[offer.slot].image(offer.height, offer.width)
        if self._pins is not None:
            self._pins.pin(image)
        frame = Frame(offer.camera, offer.stamp_ns, image, context=offer)
        frame.received_ns, frame.decode_ns = offer.received_ns, offer.decode_ns
        self._engine.offer(frame, offer.dnns)

    def _on_result(self, result: Result) -> None:
        offer = result.frame.context
        assert isinstance(offer, messages.Offer)
        space = self._slots[offer.camera].slots[offer.slot].output(result.dnn)
        data, large = messages.pack(result.output, space)
        self._channel.send(messages.FrameResult(offer.number, result.dnn, result.timing, data, large))

    def _on_drop(self, drop: Drop) -> None:
        offer = drop.frame.context
        assert isinstance(offer, messages.Offer)
        with suppress(messages.Disconnected):  # the node has answered the frame itself
            self._channel.send(messages.FrameDropped(offer.number, drop.dnn, drop.reason, drop.message))


# -- in a process of its own


def main(descriptor: int) -> NoReturn:
    """Run until the node's process ends, or ends this process. descriptor: of the connection to it."""
    faulthandler.enable(all_threads=False)  # writes the stack of a crash to stderr
    threading.current_thread().name = "configure"
    channel = messages.Channel(socket.socket(fileno=descriptor))
    os.register_at_fork(after_in_child=channel.close)  # a child must not keep the connection open
    with short_switch_interval():
        _exit_on_error(channel, "in the engine process", partial(_run, channel))
    os._exit(EXIT_FAILED)  # not reached


def _run(channel: messages.Channel) -> NoReturn:
    """The main thread."""
    begin = channel.receive()
    assert isinstance(begin, messages.Begin)
    fail = partial(_exit_with_cause, channel)
    state = EngineState(begin.dnns, begin.state, lambda error: fail(summarize_error(error)))
    tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    slots = {layout.camera: SlotMemory(layout, fd) for layout, fd in begin.pools}
    program = EngineProgram(channel, slots, state, tasks.put, fail)
    # Before the imports: the node's process may end during them.
    for name, function in (("heartbeat", program.beat), ("receive", program.receive)):
        target = partial(_exit_on_error, channel, f"in the thread {name}", function)
        threading.Thread(target=target, name=name, daemon=True).start()
    package_log = logging.getLogger("multi_dnn_ros")
    package_log.addHandler(_ChannelHandler(channel))  # type: ignore[arg-type]
    package_log.setLevel(begin.log_level)
    for name in ("multi_dnn_ros.serving.configure", "multi_dnn_ros.engine.engine", *begin.modules):
        found = pkgutil.resolve_name(name)  # these imports take seconds
        if callable(found):
            found()
    import cv2  # only here: it takes a while

    cv2.setNumThreads(1)  # an image that OpenCV decodes must not occupy all cores
    channel.send(messages.Ready())
    while True:
        tasks.get()()


class _ChannelHandler(QueueHandler):
    """Sends log records to the node's process."""

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(messages.Disconnected):  # the node's process has ended, and this one is about to end
            self.queue.send(record)  # type: ignore[attr-defined]


def _exit_on_error(channel: messages.Channel, where: str, function: Callable[[], Any]) -> None:
    """Call a thread's function; an error in it ends the process."""
    try:
        function()
    except messages.Disconnected:  # the node's process has ended
        os._exit(EXIT_ORPHANED)
    except BaseException as error:
        text = f"an error {where}: {type(error).__name__}: {summarize_error(error)}"
        if (cause := with_memory_limit(text)) == text:  # otherwise the place of the error does not matter
            traceback.print_exc()
        _exit_with_cause(channel, cause)


def _exit_with_cause(channel: messages.Channel, cause: str) -> NoReturn:
    """Send the cause and exit at once, without cleaning up: after a fault any call into the driver may hang."""
    timer = threading.Timer(_ABORT_S, os._exit, (EXIT_FAILED,))  # another thread may hang with the channel's lock
    timer.daemon = True
    try:
        timer.start()
        channel.send(messages.Aborting(cause))
    except (messages.Disconnected, RuntimeError):  # the node's process has ended; no thread can be started
        pass
    finally:
        os._exit(EXIT_FAILED)


# -- in the node's process

_LOADING: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_loading = threading.Event()


def is_loading() -> bool:
    """Whether a cancelled configure is still running. Ending the interpreter meanwhile would abort the process."""
    return _loading.is_set()


def _load() -> NoReturn:
    while True:
        function = _LOADING.get()
        _loading.set()
        try:
            function()
        except messages.Disconnected:
            pass
        finally:
            _loading.clear()
            del function  # it refers to the pipeline


def run_in_thread(channel: messages.Channel, slots: Mapping[str, SlotMemory], state: EngineState) -> None:
    """Run an engine in this process until `channel` is disconnected and all its threads have ended."""
    cure = "this process can no longer use the device: restart the node, or set isolation to process"

    def fail(cause: str) -> None:
        with suppress(messages.Disconnected):
            channel.send(messages.Aborting(f"{cause}; {cure}"))

    state.on_failed = lambda error: fail(summarize_error(error))
    if not any(thread.name == "load" for thread in threading.enumerate()):
        threading.Thread(target=_load, name="load", daemon=True).start()  # it must not delay the end of the process
    program = EngineProgram(channel, slots, state, _LOADING.put, fail)
    threading.Thread(target=program.beat, name="heartbeat", daemon=True).start()
    try:
        channel.send(messages.Ready())
        program.receive()
    except messages.Disconnected:
        pass
    except Exception as error:
        log.exception("an error in the engine")
        fail(f"an error in the engine: {type(error).__name__}: {summarize_error(error)}")
    finally:
        channel.shutdown()  # no answer of a thread that is ending can be received
        program.close()
        channel.close()
