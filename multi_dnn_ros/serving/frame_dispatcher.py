"""Chooses a device for each frame of a DNN with several devices: the one that is expected to finish it first."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.common.time_units import ms_to_ns
from multi_dnn_ros.engine.task import Timing

#: Maximum and minimum number of recent times whose median is the estimate; with fewer, the time measured when
#: configuring is used.
_SAMPLES, _MIN_SAMPLES = 9, 3
#: Older times are not used: a device that was slow for a while must get frames again.
_RECENT_NS = 10_000_000_000


@dataclass
class _Queue:
    """The frames of one DNN on one device.

    prior_ns: time of a frame, measured when configuring. frames: camera of each frame, by number; the first frame is in
    progress, the others wait, at most one per camera. since_ns: when the first frame began. times: when each result
    came, and the time of its frame. disabled_until_ns: None: enabled; -1: disabled without a known end.
    """

    prior_ns: int
    frames: dict[int, str] = field(default_factory=dict)
    since_ns: int = 0
    times: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    disabled_until_ns: int | None = None

    def service_ns(self, now_ns: int) -> int:
        """Estimated time of one frame."""
        recent = [took for at, took in self.times if now_ns - at <= _RECENT_NS]
        return round(statistics.median(recent)) if len(recent) >= _MIN_SAMPLES else self.prior_ns

    def finishes_ns(self, camera: str, now_ns: int) -> int:
        """Expected time from now until a new frame of the camera would be finished."""
        service_ns = self.service_ns(now_ns)
        if not self.frames:
            return service_ns
        elapsed_ns = max(0, now_ns - self.since_ns)
        # A frame that takes longer than expected may hang: expect it to take as long again.
        remaining_ns = service_ns - elapsed_ns if elapsed_ns <= service_ns else elapsed_ns
        return remaining_ns + (len(self._waiting() - {camera}) + 1) * service_ns

    def replaces(self, camera: str) -> bool:
        """Whether a new frame of the camera would replace a waiting one."""
        return camera in self._waiting()

    def has_waiting(self) -> bool:
        """Whether the device has work after the frame in progress."""
        return len(self.frames) > 1

    def _waiting(self) -> set[str]:
        return set(list(self.frames.values())[1:])


class FrameDispatcher:
    """Thread-safe. devices: names of the devices, by DNN. service_ms: (DNN, device) -> time of a frame, as measured.

    As long as a device has no waiting frame, a device on which the new frame replaces none is preferred. When all have
    waiting frames, more of them would only wait longer, so the new frame replaces a waiting one of its camera if there
    is one. allowance_ns: a device is preferred only if it is expected to finish the frame at most this much later than
    the fastest one. clock: nanoseconds, monotonic.
    """

    def __init__(
        self,
        devices: Mapping[str, Sequence[str]],
        service_ms: Mapping[tuple[str, str], float],
        allowance_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._queues = {
            dnn: {device: _Queue(ms_to_ns(service_ms.get((dnn, device), 0.0))) for device in names}
            for dnn, names in devices.items()
        }
        self._allowance_ns = allowance_ns
        self._clock = clock
        self._lock = threading.Lock()

    def choose(self, dnn: str, camera: str, number: int, devices: Sequence[str]) -> str:
        """Choose the device of a new frame from `devices`, which serve the DNN now (at least one).

        The frame counts for this device until :meth:`answered`. Devices on which the DNN is disabled are chosen only if
        there are no others.
        """
        with self._lock:
            now_ns = self._clock()
            enabled = [device for device in devices if not self._is_disabled(self._queues[dnn][device], now_ns)]
            queues = {device: self._queues[dnn][device] for device in enabled or devices}
            expected = {device: queue.finishes_ns(camera, now_ns) for device, queue in queues.items()}
            latest = min(expected.values()) + self._allowance_ns
            soon = [name for name in queues if expected[name] <= latest]
            replacing = [name for name in soon if queues[name].replaces(camera)]
            if not replacing or not all(queue.has_waiting() for queue in queues.values()):
                replacing = []  # another waiting frame keeps a device busy
            free = [name for name in soon if not queues[name].replaces(camera)]
            device = min(replacing or free or expected, key=lambda name: expected[name])
            queue = queues[device]
            if not queue.frames:
                queue.since_ns = now_ns
            queue.frames[number] = camera
            return device

    def answered(self, number: int, dnn: str, device: str, timing: Timing | None) -> None:
        """The device has answered a frame. timing: timing of the result; None: the frame was dropped."""
        with self._lock:
            queue = self._queues[dnn][device]
            if number not in queue.frames:
                return
            now_ns = self._clock()
            first = next(iter(queue.frames)) == number
            del queue.frames[number]
            if first:
                queue.since_ns = now_ns
            if timing is not None:
                queue.times.append((now_ns, (timing.finished_ns - timing.started_ns) // timing.batch))

    def disable(self, dnn: str, device: str, retry_s: float | None) -> tuple[bool, float | None]:
        """The DNN is disabled on one device, for `retry_s` seconds; None: until :meth:`enable`.

        Returns whether it is disabled on all its devices, and then the seconds until the first of them is retried.
        """
        with self._lock:
            now_ns = self._clock()
            queues = self._queues[dnn]
            queues[device].disabled_until_ns = -1 if retry_s is None else now_ns + round(retry_s * 1e9)
            if not all(self._is_disabled(queue, now_ns) for queue in queues.values()):
                return False, None
            ends = [queue.disabled_until_ns for queue in queues.values() if queue.disabled_until_ns not in (None, -1)]
            return True, min(((end or 0) - now_ns) / 1e9 for end in ends) if ends else None

    def enable(self, dnn: str, device: str) -> None:
        """The DNN accepts frames on this device again."""
        with self._lock:
            self._queues[dnn][device].disabled_until_ns = None

    @staticmethod
    def _is_disabled(queue: _Queue, now_ns: int) -> bool:
        end_ns = queue.disabled_until_ns
        return end_ns is not None and (end_ns < 0 or now_ns < end_ns)
