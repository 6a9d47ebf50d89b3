"""The cameras of `multi-dnn benchmark paper --peers`: their newest frames in shared memory, without ROS.

The processes of cameras and readers have a connection to the benchmark, which sends the phases in which they work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Semaphore

import numpy as np

#: Frames of a camera that are kept, so that a reader has time before its frame is overwritten.
SLOTS = 8
_PICTURES = 6


class CameraFrames:
    """The newest frames of all cameras in shared memory. size: (width, height). name: of memory that exists.

    images: (cameras, SLOTS, H, W, 3) uint8 BGR. stamps_ns: (cameras, SLOTS), monotonic clock. numbers: of the newest
    frame of each camera, from 1 on, which is in slot `number % SLOTS`.
    """

    def __init__(self, cameras: int, size: tuple[int, int], name: str | None = None) -> None:
        shape = (cameras, SLOTS, size[1], size[0], 3)
        pixels = int(np.prod(shape))
        self.arguments = cameras, size
        memory = SharedMemory(name, create=name is None, size=pixels + 8 * cameras * (SLOTS + 1))
        self.images = np.ndarray(shape, np.uint8, memory.buf)
        self.stamps_ns = np.ndarray((cameras, SLOTS), np.int64, memory.buf, pixels)
        self.numbers = np.ndarray(cameras, np.int64, memory.buf, pixels + 8 * cameras * SLOTS)
        self.memory = memory  # last, because it can be closed only after the arrays

    def __reduce__(self) -> tuple[type[CameraFrames], tuple[int, tuple[int, int], str]]:
        return CameraFrames, (*self.arguments, self.memory.name)


@dataclass(frozen=True)
class Phase:
    """A measured time, seconds of the monotonic clock. rate_hz: of each camera. readers: who is woken by new frames."""

    rate_hz: float
    begin_s: float
    end_s: float
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What a reader did in a phase. latencies_ms: from the frame's stamp to the result on the host. cpu_s: its CPU
    time.
    """

    latencies_ms: list[float]
    cpu_s: float


def run_camera(camera: int, frames: CameraFrames, wakes: Sequence[Semaphore], connection: Connection) -> None:
    """The process of a camera: for each phase, publish at its rate and answer with the number of frames."""
    random = np.random.default_rng(camera)
    pictures = random.integers(0, 256, (_PICTURES, *frames.images.shape[2:]), np.uint8)
    while True:
        phase: Phase = connection.recv()
        sent, first = 0, int(frames.numbers[camera]) + 1
        offset = camera / len(frames.numbers)
        while (due_s := phase.begin_s + (sent + offset) / phase.rate_hz) < phase.end_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            number = first + sent
            stamp_ns = time.monotonic_ns()
            frames.images[camera, number % SLOTS] = pictures[number % _PICTURES]
            frames.stamps_ns[camera, number % SLOTS] = stamp_ns
            frames.numbers[camera] = number
            for reader in phase.readers:
                wakes[reader].release()
            sent += 1
        connection.send(sent)
