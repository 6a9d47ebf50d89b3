"""An engine in this process: handles the messages to an engine, and answers with those from one.

An engine process runs one (:mod:`multi_dnn_ros.serving.engine_main`). With `isolation: none` the node's process runs it
itself (:class:`InProcessEngine`), for debuggers and as the baseline of benchmarks. PyTorch is imported when it is
configured, not by this module.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import Cancelled, Progress
from multi_dnn_ros.serving.engine_state import EngineState, JobObserver, create_state_memory
from multi_dnn_ros.serving.slots import SlotMemory, SlotPool
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.jpeg_file import FrameImage, JpegFile

if TYPE_CHECKING:
    from multi_dnn_ros.engine.engine import Engine
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.serving.pinned import PinnedImages

#: Runtime parameters that are attributes of a DNN's decoder.
_DECODER_PARAMETERS = ("score_threshold", "iou_threshold", "max_detections")
#: Runtime parameters in ms that the engine changes.
_ENGINE_TIMES = ("deadline_ms", "max_age_ms")
#: Nice value of a thread that configures while another engine serves; compilers that it starts inherit it.
_BACKGROUND_NICE = 19
#: Period of reports.
REPORT_S = 1.0
#: Maximum time for the frames of an engine in this process that is ended.
_END_S = 1.0


class LocalEngine:
    """Handles one message at a time with :meth:`handle`; answers with `emit`, in any thread.

    slots: by camera. run_later: calls a function soon, one at a time and always in the same thread, because
    torch.export crashes in a second thread of a process. on_failed: called with the cause if the device has failed.
    """

    def __init__(
        self,
        slots: Mapping[str, SlotMemory],
        state: EngineState,
        emit: Callable[[Any], None],
        run_later: Callable[[Callable[[], None]], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self.emit = emit
        self.cancelled = False
        self._slots = slots
        self._state = state
        self._run_later = run_later
        self._on_failed = on_failed
        self._config: NodeConfig | None = None
        self._pipeline: Pipeline | None = None
        self._engine: Engine | None = None
        self._pins: PinnedImages | None = None
        self._stopping: threading.Thread | None = None

    def handle(self, message: Any) -> None:
        """Handle a message to an engine; does not block for long. Raises TypeError for any other message."""
        if isinstance(message, messages.Offer):
            self._offer(message)
        elif isinstance(message, messages.Update):
            if self._config is not None and message.dnn in self._config.dnns:
                self._set(message.dnn, message.name, message.value)
        elif isinstance(message, messages.Start):
            self._start(message)
        elif isinstance(message, messages.Stop):
            engine, self._engine = self._engine, None
            # In a thread, because the one that receives messages has to notice the end of the node's process.
            self._stopping = threading.Thread(
                target=self._stop, args=(engine, message.timeout_s), name="stop", daemon=True
            )
            self._stopping.start()
        elif isinstance(message, messages.FindDevices):
            self._run_later(partial(self._find_devices, message))
        elif isinstance(message, messages.Configure):
            self._run_later(partial(self._configure, message))
        else:
            raise TypeError(f"message {type(message).__name__} is not one to an engine")

    def report(self, *, own_process: bool) -> messages.Report:
        """The memory in use and the threads that ended with an error. own_process: whether the process is the
        engine's.
        """
        import psutil

        memory = {"resident memory (bytes)": psutil.Process().memory_info().rss} if own_process else {}
        pipeline, engine = self._pipeline, self._engine
        if pipeline is not None and pipeline.device.type == "cuda":
            import torch

            memory["GPU allocated (bytes)"] = torch.cuda.memory_allocated(pipeline.device)
            memory["GPU reserved (bytes)"] = torch.cuda.memory_reserved(pipeline.device)
        return messages.Report(memory, tuple(engine.failed_threads()) if engine is not None else ())

    def close(self, timeout_s: float) -> list[str]:
        """Stop and free everything; for an engine in the node's process. Returns the names of threads that hang."""
        self.cancelled = True
        engine, self._engine = self._engine, None
        hanging = self._end(engine, timeout_s, drain=False)
        pipeline, self._pipeline, self._config = self._pipeline, None, None
        if pipeline is not None:
            from multi_dnn_ros.serving.memory import release_memory

            device = pipeline.device
            del pipeline, engine
            release_memory(device)
        return hanging

    # -- configuring

    def _find_devices(self, request: messages.FindDevices) -> None:
        from multi_dnn_ros.serving.configure import describe_failure, find_devices

        self._report(Progress("choosing the devices", 0, len(request.config.dnns)))
        try:
            self.emit(messages.DevicesFound(find_devices(request.config, request.build)))
        except Exception as error:
            self.emit(messages.Refused(*describe_failure(error)))

    def _configure(self, request: messages.Configure) -> None:
        from multi_dnn_ros.backends.device_errors import is_device_failure
        from multi_dnn_ros.serving.configure import configure, describe_failure

        if request.in_background:
            from multi_dnn_ros.backends.thread_priority import keep_priority

            keep_priority()  # for the threads of ONNX Runtime, which run the DNNs later
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICE)
        try:
            pipeline, description = configure(
                request.config, request.dnns, request.build, self._report, measure_capacity=not request.in_background
            )
        except Cancelled:
            return
        except Exception as error:
            if is_device_failure(error):
                self._on_failed(f"while configuring: {summarize_error(error)}")
            self.emit(messages.Refused(*describe_failure(error)))
            return
        if self.cancelled:
            return
        part = {name: request.config.dnns[name] for name in request.dnns}
        self._config = request.config.model_copy(update={"dnns": part}).model_copy(deep=True)
        self._pipeline = pipeline
        self.emit(messages.Configured(description))

    def _report(self, progress: Progress) -> None:
        if self.cancelled:
            raise Cancelled
        self.emit(messages.Progressed(progress))

    # -- serving

    def _start(self, start: messages.Start) -> None:
        from multi_dnn_ros.engine.engine import Engine
        from multi_dnn_ros.serving.pinned import PinnedImages

        if self._pipeline is None or self._config is None:
            raise RuntimeError("Start before Configured")
        if self._stopping is not None:
            self._stopping.join()  # bounded by the timeout of its Stop
        pipeline, config = self._pipeline, self._config
        for dnn, values in start.runtime.items():
            if dnn in config.dnns:
                for name, value in values.items():
                    self._set(dnn, name, value)
        self._pins = PinnedImages(pipeline.device)
        engine = Engine(
            [_with_settings(task, config) for task in pipeline.tasks],
            on_result=self._on_result,
            on_drop=self._on_drop,
            on_failure=lambda failure: self.emit(messages.Failed(failure)),
            workers=pipeline.workers,
            policy=config.policy,
            device=pipeline.device,
            max_failures=config.max_failures,
            aging_ns=round(config.aging_ms * 1e6),
            observer=JobObserver(self._state, lambda error: self._on_failed(summarize_error(error))),
        )
        engine.start()
        self._engine = engine

    def _set(self, dnn: str, name: str, value: Any) -> None:
        """Set a runtime parameter in the settings, in the decoder and in the engine. name: without `dnn.<dnn>.`."""
        assert self._config is not None
        output, field = assign(self._config.dnns[dnn], name, value)
        pipeline, engine = self._pipeline, self._engine
        if pipeline is not None and field in _DECODER_PARAMETERS and output in pipeline.dnns[dnn].outputs:
            setattr(pipeline.dnns[dnn].outputs[output].decoder, field, value)
        elif engine is not None and field == "priority":
            engine.update(dnn, priority=value)
        elif engine is not None and field in _ENGINE_TIMES:
            engine.update(dnn, **{field.replace("_ms", "_ns"): round(value * 1e6)})

    def _offer(self, offer: messages.Offer) -> None:
        engine, pipeline = self._engine, self._pipeline
        if engine is None or pipeline is None:
            for dnn in offer.dnns:
                text = "the engine is not started"
                self.emit(messages.FrameDropped(offer.number, dnn, DropReason.SHUTDOWN, text))
            return
        slots = self._slots[offer.camera]
        image: FrameImage
        if offer.jpeg_bytes:  # small, and decoded where it lies
            image = JpegFile(slots.file(offer.slot, offer.jpeg_bytes), offer.height, offer.width)
        else:
            image = slots.image(offer.slot, offer.height, offer.width)
            if self._pins is not None:
                self._pins.pin(image)
        frame = Frame(offer.camera, offer.stamp_ns, context=offer, jpeg_decoder=pipeline.jpeg_decoder)
        frame.set_image(image, offer.decode_ns)
        frame.received_ns = offer.received_ns
        engine.offer(frame, offer.dnns)

    def _stop(self, engine: Engine | None, timeout_s: float) -> None:
        self.emit(messages.Stopped(tuple(self._end(engine, timeout_s, drain=True))))

    def _end(self, engine: Engine | None, timeout_s: float, *, drain: bool) -> list[str]:
        """Returns the names of threads that hang."""
        hanging = engine.stop(timeout_s, drain=drain) if engine is not None else []
        if not hanging and self._pins is not None:  # a hanging thread may still be uploading an image
            self._pins.close()
        return hanging

    def _on_result(self, result: Result) -> None:
        offer = result.frame.context
        assert isinstance(offer, messages.Offer)
        data, large = messages.pack(result.output, self._slots[offer.camera].output(offer.slot, result.dnn))
        self.emit(messages.FrameResult(offer.number, result.dnn, result.timing, data, large))

    def _on_drop(self, drop: Drop) -> None:
        offer = drop.frame.context
        assert isinstance(offer, messages.Offer)
        self.emit(messages.FrameDropped(offer.number, drop.dnn, drop.reason, drop.message))


class InProcessEngine:
    """An engine in the node's process, with the interface of
    :class:`multi_dnn_ros.serving.engine_process.EngineProcess`.
    """

    def __init__(
        self, label: str, dnns: Sequence[str], pools: Mapping[str, SlotPool], on_message: Callable[[Any], None]
    ) -> None:
        fd = create_state_memory(dnns)
        try:
            self.state = EngineState(dnns, fd)
        finally:
            os.close(fd)
        self.pid = os.getpid()
        self._on_message = on_message
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._cause = ""
        slots = {camera: pool.memory for camera, pool in pools.items()}
        self._engine = LocalEngine(slots, self.state, on_message, _THREAD.run_later, self._fail)
        threading.Thread(target=self._send_reports, name=f"report {label}", daemon=True).start()
        on_message(messages.Ready())

    def send(self, message: Any) -> None:
        """Handle a message; discarded once the engine is ended."""
        if not self._cause:
            self._engine.handle(message)

    def kill(self, cause: str) -> None:
        """Stop the engine. Threads that hang stay; memory that they refer to is freed when they end."""
        with self._lock:
            if self._cause:
                return
            self._cause = cause
        threading.Thread(target=self._end, name="end of the engine", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the engine; False on timeout."""
        return self._ended.wait(timeout_s)

    def _end(self) -> None:
        hanging = self._engine.close(_END_S)
        text = f"{self._cause}; threads hang: {', '.join(hanging)}" if hanging else self._cause
        self._ended.set()
        self._on_message(messages.Ended(text))

    def _fail(self, cause: str) -> None:
        if not self._cause:
            cure = "restart the node, or set isolation to process"
            self._on_message(messages.Aborting(f"{cause}; this process can no longer use the device: {cure}"))

    def _send_reports(self) -> None:
        while not self._ended.wait(REPORT_S):
            self._on_message(self._engine.report(own_process=False))


class _ConfiguringThread:
    """Runs functions one after another in the same daemon thread, which must not delay the end of the process."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.busy = False

    def run_later(self, function: Callable[[], None]) -> None:
        self._calls.put(function)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="configure", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            function = self._calls.get()
            self.busy = True
            function()
            self.busy = False
            del function  # it refers to the pipeline


_THREAD = _ConfiguringThread()


def is_loading() -> bool:
    """Whether a cancelled configure is still running. Ending the interpreter meanwhile would abort the process."""
    return _THREAD.busy


def _with_settings(task: DnnTask, config: NodeConfig) -> DnnTask:
    """The task with the current scheduling parameters."""
    settings = config.dnns[task.name]
    return replace(
        task,
        priority=settings.priority,
        deadline_ns=round(settings.deadline_ms * 1e6) or None,
        max_age_ns=round(settings.max_age_ms * 1e6) or None,
    )
