"""Where frames wait for a DNN: one mailbox per camera, which keeps the newest frame."""

from __future__ import annotations

from collections.abc import Iterable

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
