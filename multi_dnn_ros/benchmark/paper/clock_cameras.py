"""The cameras of `multi-dnn benchmark paper --peers`: frames that are there from their time on, without ROS.

Every process has the same pictures and the same clock, so that nothing has to be sent between processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Different pictures of each camera.
PICTURES = 6


def make_pictures(cameras: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """(cameras, PICTURES, H, W, 3) BGR noise. size: (width, height)."""
    return np.random.default_rng(0).integers(0, 256, (cameras, PICTURES, size[1], size[0], 3), np.uint8)


@dataclass(frozen=True)
class Phase:
    """A measured time, seconds of the monotonic clock, in which `cameras` cameras take frames at `rate_hz` each.

    Frame n of camera c is taken at begin_s + (n + c / cameras) / rate_hz, with picture n modulo PICTURES.
    """

    rate_hz: float
    begin_s: float
    end_s: float
    cameras: int

    @property
    def frames(self) -> int:
        """Number of frames of all cameras."""
        return self.cameras * int((self.end_s - self.begin_s) * self.rate_hz)

    def newest(self, now_s: float) -> npt.NDArray[np.int64]:
        """(cameras,) number of the newest frame at a time; -1: there is none yet."""
        passed = (min(now_s, self.end_s) - self.begin_s) * self.rate_hz - np.arange(self.cameras) / self.cameras
        return np.maximum(np.floor(passed), -1).astype(np.int64)

    def taken_s(self, camera: int, number: int) -> float:
        """When a frame is taken."""
        return self.begin_s + (number + camera / self.cameras) / self.rate_hz

    def wait(self, seen: npt.NDArray[np.int64]) -> bool:
        """Wait for a frame after the ones of these numbers; False: the phase has ended."""
        due_s = min(self.taken_s(camera, int(number) + 1) for camera, number in enumerate(seen))
        if due_s >= self.end_s:
            return False
        time.sleep(max(0.0, due_s - time.monotonic()))
        return True


@dataclass(frozen=True)
class Report:
    """What a process did in a phase. latencies_ms: from the time of a frame to its result on the host. cpu_s: its CPU
    time.
    """

    latencies_ms: list[float]
    cpu_s: float
