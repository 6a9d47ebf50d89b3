"""Frames that wait for a DNN: the newest one of each camera, and how long the DNN waits for more of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from multi_dnn_ros.engine.frame import Frame


class Mailboxes:
    """The mailboxes of one DNN, emptied round-robin over the cameras.

    Not thread-safe: the DNN thread that owns them calls them under its lock.
    """

    def __init__(self, cameras: Iterable[str]) -> None:
        # In serving order: the camera served last is at the end.
        self._frames: dict[str, Frame | None] = dict.fromkeys(cameras)
        self._waiting = 0

    def put(self, frame: Frame) -> Frame | None:
        """Store the newest frame of its camera; return the frame it replaces."""
        old = self._frames[frame.camera]
        self._frames[frame.camera] = frame
        self._waiting += old is None
        return old

    def take(self) -> Frame | None:
        """Remove and return the next camera's waiting frame, or None. Consecutive calls serve different cameras."""
        for camera, frame in self._frames.items():
            if frame is not None:
                del self._frames[camera]
                self._frames[camera] = None
                self._waiting -= 1
                return frame
        return None

    def is_empty(self, camera: str) -> bool:
        return self._frames[camera] is None

    def clear(self) -> list[Frame]:
        """Remove and return all frames."""
        frames = [frame for frame in self._frames.values() if frame is not None]
        self._frames = dict.fromkeys(self._frames)
        self._waiting = 0
        return frames

    def __len__(self) -> int:
        return self._waiting


class BatchDelay:
    """Not thread-safe: the DNN thread that owns it calls it under its lock.

    max_batch: maximum frames per inference. delay_ns: maximum wait for further frames, from the moment when the DNN
    could have started with the first. clock: nanoseconds.
    """

    def __init__(self, max_batch: int, delay_ns: int, clock: Callable[[], int]) -> None:
        self._max_batch = max_batch
        self._delay_ns = delay_ns
        self._clock = clock
        self._until_ns: int | None = None

    def should_start(self, waiting: int) -> bool:
        """Whether the idle DNN starts now with the `waiting` frames (1 or more)."""
        if waiting >= self._max_batch or not self._delay_ns:
            return True
        now = self._clock()
        if self._until_ns is None:
            self._until_ns = now + self._delay_ns
        return now >= self._until_ns

    def remaining_s(self) -> float | None:
        """Seconds until the delay has elapsed; None if it is not running."""
        return None if self._until_ns is None else max(0, self._until_ns - self._clock()) / 1e9

    def reset(self) -> None:
        """End the delay, because the inference has started or cannot start."""
        self._until_ns = None
