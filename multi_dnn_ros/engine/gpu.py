"""Runs inferences on a GPU: each as one launch on the stream of its DNN."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from multi_dnn_ros.backends.captured_network import Network
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.green_contexts import make_stream
from multi_dnn_ros.backends.host_copies import HostCopies
from multi_dnn_ros.backends.stream_priority import stream_priorities
from multi_dnn_ros.engine.gates import Gates
from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.task import DnnTask

log = logging.getLogger(__name__)

#: Maximum number of image sizes per DNN whose preprocessing is captured; a camera has one or a few.
_MAX_SIZES = 16
#: A busy device may succeed later, but every attempt delays all DNNs.
_MAX_ATTEMPTS = 3


@dataclass(eq=False)
class _Launched:
    """An inference on the GPU. began, ended: events around the network. ready: the outputs are in `host`."""

    network: Network
    began: torch.cuda.Event
    ended: torch.cuda.Event
    ready: torch.cuda.Event
    host: torch.Tensor


class _Stream:
    """What belongs to one DNN: its current stream, its events, and pinned memory for its outputs.

    Creating an event costs more than recording it, so events are used again. A thread that waits for a blocking event
    sleeps; waiting for any other event occupies a core until the kernels have run.
    """

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.last: torch.cuda.Event | None = None  # after everything launched so far
        self.host_copies = HostCopies()
        self.attempts_left: dict[tuple[int, int], int] = {}  # by image size; 0: captured or given up
        self._free: list[torch.cuda.Event] = []

    def record(self) -> torch.cuda.Event:
        """An event after everything launched so far; the stream must be the calling thread's current one."""
        assert self.stream is not None
        if self._free:
            event = self._free.pop()
            enqueue_on(self.stream.device).record(event)
        else:
            event = torch.cuda.Event(enable_timing=True, blocking=True)
            event.record(self.stream)
        return event

    def release(self, launched: _Launched) -> None:
        """Nothing waits for its events any more; `last` may be one of them, and then stands for what comes later."""
        self._free += [launched.began, launched.ended, launched.ready]


class GpuRunner:
    """Launches in the threads of the DNNs, one at a time, and waits there for the outputs.

    The graph of a DNN has fixed memory: its inferences follow one another on one stream, and the next one may be
    launched before the previous one has ended. `gates` hold back what the policy puts behind other frames. The streams
    have the priorities of the DNNs, or are restricted to the DNN's share of the SMs.

    A launch takes tens of microseconds with the GIL held, so that a further thread for launching would only add the
    time of waking it.
    """

    #: Inferences of a DNN that may have been started before the oldest of them is finished: with two the GPU needs not
    #: wait for the host between them.
    ahead = 2

    def __init__(
        self,
        device: torch.device,
        policy: Policy,
        tasks: Callable[[], Sequence[DnnTask]],
        clock: Callable[[], int],
        observer: Observer,
    ) -> None:
        self._device = device
        self._clock = clock
        self._observer = observer
        self._tasks = tasks
        self._gates = Gates(tasks(), policy, clock)
        self._dnns = {task.name: _Stream() for task in tasks()}
        self._streams: dict[tuple[str, int, int], torch.cuda.Stream] = {}
        self._launching = threading.RLock()  # while a graph is captured, nothing may be launched
        self.update()

    def enter_thread(self) -> None:
        """Select the device; called once by each DNN's thread, because PyTorch's current device is per thread."""
        torch.cuda.set_device(self._device)

    def update(self) -> None:
        """The tasks' priorities or deadlines have changed."""
        tasks = self._tasks()
        self._priorities = stream_priorities(task.priority for task in tasks)
        self._gates.update(tasks)

    def start(self, inference: Inference) -> None:
        """Launch the inference. An error is left in its `drop_cause`."""
        name = inference.task.name
        dnn = self._dnns[name]
        self._observer.began(name)
        self._gates.begin(inference)
        try:
            with self._launching, torch.inference_mode():
                self._enter_stream(inference, dnn)
                try:
                    inference.launched = self._launch(inference, dnn)
                except BaseException:
                    # What it has launched may still use the memory of the DNN: a later inference, perhaps on another
                    # stream, has to wait for it, too.
                    with suppress(RuntimeError):  # the device has failed
                        dnn.last = dnn.record()
                    raise
        except BaseException as error:  # whatever error a DNN raises, the thread must continue
            self._fail(inference, error)

    def wait(self, inference: Inference) -> None:
        """Wait until the outputs are on the CPU. Releases the GIL while waiting."""
        launched: _Launched | None = inference.launched
        try:
            if launched is not None:
                launched.ready.synchronize()
                inference.compute_ns = int(launched.began.elapsed_time(launched.ended) * 1e6)
        except BaseException as error:  # kernel failures surface here
            self._fail(inference, error)
        finally:
            self._gates.end(inference)
        if launched is not None and inference.drop_cause is None:
            self._dnns[inference.task.name].release(launched)
            inference.rows = launched.network.unpack(launched.host)
        inference.launched = None
        self._observer.ended(inference.task.name)

    def specialize(self, inference: Inference) -> None:
        """Capture preprocessing once per image size, after a frame of that size was processed; a failure is logged, and
        the capture tried again twice.
        """
        task = inference.task
        if task.specialize is None or inference.drop_cause is not None:
            return
        left = self._dnns[task.name].attempts_left
        for item in inference.items:
            if item.drop_cause is not None:
                continue
            height, width = size = item.frame.size
            attempts = left.get(size, _MAX_ATTEMPTS if len(left) < _MAX_SIZES else 0)
            if not attempts:
                continue
            left[size] = 0
            try:
                with self._launching:
                    task.specialize(size)
            except Exception as error:
                left[size] = attempts - 1
                log.warning(
                    "DNN %s: preprocessing is not captured (capture_preprocess) and runs eagerly for images of %d x %d "
                    "(attempts left: %d): %s",
                    task.name, width, height, attempts - 1, error,
                )  # fmt: skip

    def forget(self, dnn: str) -> None:
        """The thread of the DNN has ended with an error: its frames hold back no others."""
        self._gates.forget(dnn)

    def close(self) -> None:
        """Open all gates, so that what was launched can end."""
        self._gates.stop()

    def stream_of(self, dnn: str, sms: int, priority: int) -> torch.cuda.Stream:
        """The stream of a DNN on its share of the SMs, or with its priority, as compared with the other DNNs."""
        # A frame may have started before its DNN's priority changed; streams on a share of the SMs have no priority.
        key = dnn, sms, 0 if sms else self._priorities.get(priority, 0)
        if key not in self._streams:
            self._streams[key] = make_stream(self._device, sms, key[2])
        return self._streams[key]

    def _enter_stream(self, inference: Inference, dnn: _Stream) -> None:
        """Make the DNN's stream the current one of its thread."""
        stream = self.stream_of(inference.task.name, inference.task.sms, inference.priority)
        if stream is not dnn.stream:
            torch.cuda.set_stream(stream)
            if dnn.last is not None:
                stream.wait_event(dnn.last)
            dnn.stream = stream

    def _launch(self, inference: Inference, dnn: _Stream) -> _Launched:
        before = self._clock()
        network = inference.task.network_for(len(inference.items))
        images = inference.images(self._device, is_device_failure)
        inputs = next(images) if network.batch == 1 else network.load(images)
        inference.pre_ns = self._clock() - before
        began = dnn.record()
        packed = network.launch(inputs)
        ended = dnn.record()
        host = dnn.host_copies.start(packed)
        dnn.last = ready = dnn.record()
        return _Launched(network, began, ended, ready, host)

    def _fail(self, inference: Inference, error: BaseException) -> None:
        if is_device_failure(error):
            self._observer.device_failed(inference.task.name, error)
        inference.fail(error)
