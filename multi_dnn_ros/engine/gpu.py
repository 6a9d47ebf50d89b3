"""Runs inferences on a GPU: one thread launches each as one CUDA graph and notices when it has ended."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from multi_dnn_ros.backends.captured_network import Network
from multi_dnn_ros.backends.cuda_driver import HostCopies, enqueue_on
from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.green_contexts import make_stream
from multi_dnn_ros.engine.dnn_thread import DnnThread
from multi_dnn_ros.engine.gates import Gates
from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.reports import Observer

log = logging.getLogger(__name__)

#: Inferences of a DNN that may be launched before the oldest of them has ended: with two, the GPU needs not wait for
#: the host between them.
AHEAD = 2
#: PyTorch has streams of four priorities; CUDA has more on some GPUs.
_PRIORITIES = 4
#: How often the thread looks whether an inference has ended. A blocking event wakes a thread 100 us after the end.
_POLL_S = 40e-6
#: It begins to look after this share of the shortest of the DNN's last _RECENT inferences: each look takes the GIL, for
#: which a thread that decodes outputs then waits.
_ASLEEP, _RECENT = 0.7, 4
#: After this many polls without an end, the events are asked whether the device has failed: a failed one ends nothing.
_POLLS_PER_CHECK = 250
#: Inferences are numbered from 0 to this, and again.
_NUMBERS = 2**31
#: Maximum number of image sizes per DNN whose preprocessing is captured; a camera has one or a few.
_MAX_SIZES = 16


class _Launched(NamedTuple):
    """An inference on the GPU. began, ended: events around the network. number: in `done` once the outputs arrived.
    expected_s: on the clock of time.monotonic; it will not have ended much earlier.
    """

    network: Network
    began: torch.cuda.Event
    ended: torch.cuda.Event
    host: torch.Tensor
    number: int
    expected_s: float

    def is_done(self, number: int) -> bool:
        """Whether the outputs have arrived. number: of the inference that was the last to end."""
        return (number - self.number) % _NUMBERS < _NUMBERS // 2


class _DnnState:
    """The streams of one DNN, its events, and pinned memory for its outputs and the number of the last one that ended.

    Creating an event costs more than recording it, so events are used again.
    """

    def __init__(self, device: torch.device) -> None:
        self.streams: dict[int, torch.cuda.Stream] = {}  # by priority
        self.stream: torch.cuda.Stream | None = None  # of the last launch
        self.last: torch.cuda.Event | None = None  # after everything launched so far
        self.in_flight: deque[Inference] = deque()
        self.host_copies = HostCopies()
        self.sizes: set[tuple[int, int]] = set()  # of images whose preprocessing was captured, or could not be
        self.done = enqueue_on(device).counter()
        self.launched = 0
        self.recent_ns: deque[int] = deque(maxlen=_RECENT)  # times of the last inferences on the GPU
        self.free_events: list[torch.cuda.Event] = []

    def record(self) -> torch.cuda.Event:
        """An event after everything launched so far; the stream must be the calling thread's current one."""
        assert self.stream is not None
        if self.free_events:
            event = self.free_events.pop()
            enqueue_on(self.stream.device).record(event)
        else:
            event = torch.cuda.Event(enable_timing=True)
            event.record(self.stream)
        return event


class GpuRunner(threading.Thread):
    """The launching thread of a GPU.

    The graph of a DNN has fixed memory: its inferences follow one another on one stream, and the next one may be
    launched before the previous one has ended. `gates` hold back what the policy puts behind other frames. The streams
    have the priorities of the DNNs, or are restricted to the DNN's share of the SMs.

    All calls of CUDA come from this thread, so that no launch waits for the GIL because another one is waiting for it.
    While an inference is about to end, it looks for that every _POLL_S: the GPU writes the number of each finished
    inference into memory of the host. Otherwise it sleeps.
    """

    def __init__(
        self,
        device: torch.device,
        policy: Policy,
        dnns: Sequence[DnnThread],
        clock: Callable[[], int],
        observer: Observer,
    ) -> None:
        super().__init__(name="launch", daemon=True)
        self._device = device
        self._policy = policy
        self._clock = clock
        self._observer = observer
        self._dnns = dnns
        tasks = [dnn.task for dnn in dnns]
        self._states = {task.name: _DnnState(device) for task in tasks}
        self._gates = Gates(tasks, policy, clock, lambda dnn: self._states[dnn].streams.clear())
        self._priorities = _stream_priorities(task.priority for task in tasks)
        self._woken = threading.Lock()  # released to wake the thread
        self._woken.acquire()
        self._sleeps = False
        self._closed = False

    # -- called from other threads

    def wake(self) -> None:
        """A frame waits."""
        if self._sleeps:
            self._sleeps = False
            with contextlib.suppress(RuntimeError):  # another thread was faster
                self._woken.release()

    def update(self) -> None:
        """The tasks' priorities or deadlines have changed."""
        tasks = [dnn.task for dnn in self._dnns]
        self._priorities = _stream_priorities(task.priority for task in tasks)
        self._gates.update(tasks)

    def close(self) -> None:
        """Open all gates, and end once what was launched has ended. The DNNs accept no more frames."""
        self._gates.stop()
        self._closed = True
        self.wake()

    # -- the thread

    def run(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            _sleep_precisely()
            with torch.inference_mode():
                self._serve()
        except BaseException as error:  # an error of the engine itself; Engine.failed_threads() reports the thread
            log.exception("the launching thread ended with an error; its engine process is replaced")
            for dnn in self._dnns:
                dnn.fail(f"{type(error).__name__}: {error}")

    def _serve(self) -> None:
        idle_polls = 0
        while True:
            started = self._start_all()
            ended = self._finish_ended(check=idle_polls >= _POLLS_PER_CHECK)
            if started or ended:
                idle_polls = 0
                continue
            launched = [state.in_flight[0].launched for state in self._states.values() if state.in_flight]
            if launched:
                idle_polls = idle_polls + 1 if idle_polls < _POLLS_PER_CHECK else 0
                first_s = min(0.0 if each is None else each.expected_s for each in launched)
                self._sleep(max(_POLL_S, first_s - time.monotonic()))
            elif self._closed:
                return
            else:
                self._sleep(None)

    def _sleep(self, longest_s: float | None) -> None:
        """Until `wake`, the end of a DNN's delay, or `longest_s` seconds."""
        self._sleeps = True  # before asking the DNNs: `wake` may be called in between
        delays = [delay for dnn in self._dnns if (delay := dnn.delay_s()) is not None]
        if longest_s is not None:
            delays.append(longest_s)
        timeout_s = min(delays) if delays else -1
        if timeout_s and not self._closed:
            self._woken.acquire(timeout=timeout_s)
        self._sleeps = False

    def _start_all(self) -> bool:
        """Launch what waits, in the order of the policy. Returns whether there was anything."""
        inferences = [inference for dnn in self._dnns if (inference := dnn.take()) is not None]
        if len(inferences) > 1:
            inferences.sort(key=lambda inference: self._policy.key(inference, inference.received_ns))
        for inference in inferences:
            self._start(inference)
        return bool(inferences)

    def _start(self, inference: Inference) -> None:
        state = self._states[inference.task.name]
        self._observer.began(inference.task.name)
        self._gates.begin(inference)
        state.in_flight.append(inference)
        try:
            self._enter_stream(inference, state)
            try:
                inference.launched = self._launch(inference, state)
            finally:
                # What a failed launch has started may still use the memory of the DNN, too.
                state.last = state.record()
        except BaseException as error:  # whatever error a DNN raises, the thread must continue
            self._fail(inference, error)

    def _enter_stream(self, inference: Inference, state: _DnnState) -> None:
        """Make the DNN's stream the current one."""
        task = inference.task
        # A frame may have been taken before its DNN's priority changed; streams on a share of the SMs have no priority.
        priority = 0 if task.sms else self._priorities.get(task.priority, 0)
        stream = state.streams.get(priority)
        if stream is None:
            stream = state.streams[priority] = make_stream(self._device, task.sms, priority)
        torch.cuda.set_stream(stream)
        if stream is not state.stream:
            if state.last is not None:
                stream.wait_event(state.last)
            state.stream = stream

    def _launch(self, inference: Inference, state: _DnnState) -> _Launched:
        before = self._clock()
        network = inference.task.network_for(len(inference.frames))
        images = inference.images(self._device, is_device_failure)
        inputs = next(images) if network.batch == 1 else network.load(images)
        inference.pre_ns = self._clock() - before
        began = state.record()
        packed = network.launch(inputs)
        ended = state.record()
        host = state.host_copies.start(packed)
        state.launched = (state.launched + 1) % _NUMBERS
        state.done.write(state.launched)
        expected_s = time.monotonic() + _ASLEEP * min(state.recent_ns, default=0) / 1e9
        return _Launched(network, began, ended, host, state.launched, expected_s)

    def _finish_ended(self, *, check: bool) -> bool:
        """Pass the inferences that have ended to their DNNs. check: whether to look for a failed device.

        Returns whether there were any.
        """
        found = False
        for dnn in self._dnns:
            state = self._states[dnn.task.name]
            while state.in_flight:
                inference = state.in_flight[0]
                launched: _Launched | None = inference.launched
                try:
                    if launched is not None and not launched.is_done(state.done.value):
                        if check:
                            launched.ended.query()
                        break
                    if launched is not None:
                        inference.compute_ns = int(launched.began.elapsed_time(launched.ended) * 1e6)
                        state.recent_ns.append(inference.compute_ns)
                        inference.rows = launched.network.unpack(launched.host)
                        # Nothing reads them; `last` may be one of them, and then stands for what comes later.
                        state.free_events += [launched.began, launched.ended]
                except RuntimeError as error:  # kernel failures surface here
                    self._fail(inference, error)
                state.in_flight.popleft()
                self._gates.end(inference)
                inference.launched = None
                self._observer.ended(dnn.task.name)
                dnn.finished(inference)
                self._specialize(inference, state)
                found = True
        return found

    def _specialize(self, inference: Inference, state: _DnnState) -> None:
        """Capture preprocessing once per image size, after a frame of that size was processed; a failure is logged."""
        task = inference.task
        if task.specialize is None or inference.drop_cause is not None or self._closed:
            return
        for size in {frame.size for frame in inference.remaining} - state.sizes:
            if len(state.sizes) == _MAX_SIZES:
                return
            state.sizes.add(size)
            try:
                with self._gates.opened():  # the capture waits for everything that was launched
                    task.specialize(size)
            except Exception as error:
                log.warning(
                    "DNN %s: preprocessing is not captured and runs eagerly for images of %d x %d: %s",
                    task.name, size[1], size[0], error,
                )  # fmt: skip

    def _fail(self, inference: Inference, error: BaseException) -> None:
        if is_device_failure(error):
            self._observer.device_failed(inference.task.name, error)
        inference.fail(error)


def _stream_priorities(priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (more urgent) for each higher one.

    With more than _PRIORITIES different priorities, the highest ones share the last one.
    """
    return {priority: -min(rank, _PRIORITIES - 1) for rank, priority in enumerate(sorted(set(priorities)))}


def _sleep_precisely() -> None:
    """Let this thread's short sleeps end in time; by default Linux adds up to 50 us."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)  # PR_SET_TIMERSLACK, nanoseconds
