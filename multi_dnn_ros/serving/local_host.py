"""The engine in the node's own process (`isolation: none`), for debuggers and as the baseline of benchmarks.

PyTorch is imported by the first configure, not by this module.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, TypeVar

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.observer import NullObserver
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.hanging_threads import hanging_threads
from multi_dnn_ros.serving.host import (
    Buffer,
    Build,
    Cancelled,
    Changes,
    ConfigureError,
    EngineDescription,
    EngineStatus,
    Level,
    Progress,
    Swap,
)
from multi_dnn_ros.serving.slots import SlotLayout, SlotPool, open_pools, slots_needed
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.serving.served_engine import ServedEngine

Value = TypeVar("Value")

#: Interval at which configure checks whether it was cancelled.
_POLL_S = 0.05
_CLOSE_S = 2.0


class LocalHost:
    """A :class:`multi_dnn_ros.serving.host.Host`. build: makes a pipeline."""

    def __init__(self, build: Build = default_build.build) -> None:
        self._build = build
        self._cancelled = threading.Event()
        self._config: NodeConfig | None = None
        self._pipeline: Pipeline | None = None
        self._pools: dict[str, SlotPool] = {}
        self._lock = threading.Lock()  # guards the engine, which other threads use
        self._engine: ServedEngine | None = None
        self._accounts: Accounts | None = None  # what became of each frame, per DNN
        self._device = _DeviceObserver()
        self._hanging: list[ServedEngine] = []

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> EngineDescription:
        """See Host. After `cancel` it raises Cancelled at once; loading stops when it next reports progress."""
        self._cancelled = cancelled = threading.Event()

        def report(step: Progress) -> None:
            if cancelled.is_set():
                raise Cancelled
            progress(step)

        future = _THREAD.submit(lambda: _configure(config, self._build, report, cancelled))
        while True:
            try:
                outcome = future.result(_POLL_S)
                break
            except FutureTimeoutError:
                if cancelled.is_set():
                    future.cancel()
                    raise Cancelled from None
        if isinstance(outcome, Exception):
            raise outcome
        if cancelled.is_set():
            raise Cancelled
        pipeline, description = outcome
        layouts = {}
        for camera, settings in config.cameras.items():
            dnns = sum(camera in dnn.cameras for dnn in description.dnns.values())
            if dnns:
                layouts[camera] = SlotLayout(camera, slots_needed(dnns), settings.max_pixels)
        self._pools = open_pools(layouts)
        self._pipeline, self._config = pipeline, config.model_copy(deep=True)
        return description

    def cancel(self) -> None:
        self._cancelled.set()

    def start(self, accounts: Accounts) -> None:
        from multi_dnn_ros.serving.served_engine import ServedEngine

        assert self._pipeline is not None
        assert self._config is not None
        with self._lock:
            self._accounts = accounts
            self._engine = ServedEngine(self._pipeline, self._config, accounts, self._device)

    def swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        raise ConfigureError(
            "with parameter isolation 'none' the settings of a DNN cannot be changed while the node is configured"
        )

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        return self._pools[camera].take(timeout_s)

    def offer(self, number: int, frame: Frame, buffer: Buffer, dnns: Collection[str]) -> None:
        image, received_ns, decode_ns = frame.source, frame.received_ns, frame.decode_ns
        with self._lock:
            engine, accounts = self._engine, self._accounts
        if accounts is None:
            raise RuntimeError("a frame was offered before the engine was started")
        if engine is None:
            for dnn in dnns:
                accounts.drop(number, dnn, DropReason.SHUTDOWN, "the engine has stopped")
            return
        engine.offer(
            number,
            frame.camera,
            image,
            stamp_ns=frame.stamp_ns,
            received_ns=received_ns,
            decode_ns=decode_ns,
            dnns=dnns,
        )

    def has_engine_for(self, camera: str) -> bool:
        return self._engine is not None and camera in self._pools

    def decodes_jpeg(self, camera: str, dnns: Collection[str]) -> bool:
        pipeline = self._pipeline
        return pipeline is not None and pipeline.jpeg_decoder is not None

    def update(self, dnn: str, name: str, value: Any) -> None:
        from multi_dnn_ros.serving.served_engine import set_runtime

        with self._lock:
            if self._config is None:
                return
            set_runtime(self._config, self._pipeline, dnn, name, value)
            if self._engine is not None:
                self._engine.update(dnn, name, value)

    def statuses(self) -> list[EngineStatus]:
        pipeline, engine = self._pipeline, self._engine
        if pipeline is None:
            return []
        name = f"engine {pipeline.device}"
        hanging = hanging_threads(self._hanging)
        ended = engine.failed_threads() if engine is not None else []
        if self._device.failure:
            text = f"the device failed and can no longer be used by this process: {self._device.failure}"
            return [
                EngineStatus(
                    name,
                    Level.ERROR,
                    f"{text}; restart the node, or set isolation to process, which replaces a failed engine process",
                )
            ]
        if ended:
            return [EngineStatus(name, Level.ERROR, f"threads ended with an error: {', '.join(ended)}")]
        if hanging:
            return [EngineStatus(name, Level.ERROR, f"threads hang: {', '.join(hanging)}")]
        state = "serving" if engine else "idle"
        return [EngineStatus(name, Level.OK, f"{state} in the node's process")]

    def memory(self) -> Mapping[str, int]:
        from multi_dnn_ros.serving.memory_use import memory_use

        return memory_use(self._pipeline.device) if self._pipeline is not None else {}

    def supervision_age_s(self) -> float:
        return 0.0

    def stop(self, timeout_s: float) -> list[str]:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is None:
            return []
        hanging = engine.stop(timeout_s)
        if hanging:
            self._hanging.append(engine)
        return hanging

    def close(self) -> None:
        """See Host. Memory that a hanging thread refers to is freed when that thread ends."""
        self.cancel()
        self.stop(_CLOSE_S)
        for pool in self._pools.values():
            pool.close()
        self._pools = {}
        pipeline, self._pipeline, self._config = self._pipeline, None, None
        if pipeline is None:
            return
        from multi_dnn_ros.common.memory import release_memory

        device = pipeline.device
        del pipeline
        release_memory(device)


class _DeviceObserver(NullObserver):
    """Remembers the first error of the device in `failure`; empty: there was none."""

    failure = ""

    def device_failed(self, dnn: str, error: BaseException) -> None:
        self.failure = self.failure or f"DNN {dnn}: {summarize_error(error)}"


def _configure(
    config: NodeConfig, build: Build, report: Callable[[Progress], None], cancelled: threading.Event
) -> tuple[Pipeline, EngineDescription] | Exception:
    """The pipeline and its description, or the error without its traceback, whose frames refer to models and memory."""
    import torch

    from multi_dnn_ros.common.memory import release_memory
    from multi_dnn_ros.serving.configure import configure, describe_failure

    try:
        outcome = configure(config, tuple(config.dnns), build, report)
        if not cancelled.is_set():
            return outcome
        del outcome
        failure: Exception = Cancelled()
    except Cancelled:
        failure = Cancelled()
    except Exception as error:
        text, expected = describe_failure(error)
        failure = ConfigureError(text, expected=expected)
    release_memory(torch.device("cuda" if torch.cuda.is_initialized() else "cpu"))
    return failure


class _SingleThread:
    """Runs functions one after another in the same daemon thread.

    There is one thread because torch.export crashes in a second thread of a process. It is a daemon because building
    must not delay the end of the process.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.busy = False

    def submit(self, function: Callable[[], Value]) -> Future[Value]:
        future: Future[Value] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="configure", daemon=True)
                self._thread.start()
        self._calls.put((future, function))
        return future

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            if future.set_running_or_notify_cancel():
                self.busy = True
                try:
                    result = function()
                except BaseException as error:
                    self.busy = False
                    future.set_exception(error)
                else:
                    self.busy = False
                    future.set_result(result)
                    del result
            del future, function  # they refer to the pipeline


_THREAD = _SingleThread()


def is_loading() -> bool:
    """Whether a cancelled configure is still running. Ending the interpreter meanwhile would abort the process."""
    return _THREAD.busy
