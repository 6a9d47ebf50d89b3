"""Where frames wait for a DNN: one slot a camera, the newest frame wins."""

from __future__ import annotations

from collections.abc import Iterable

from multi_dnn_ros.engine.frame import Frame


class Mailboxes:
    """The slots of one DNN, emptied in turn so that no camera is served twice while another waits.

    Not thread-safe: the DNN thread that owns it holds its lock around every call.
    """

    def __init__(self, cameras: Iterable[str]) -> None:
        # In the order in which the cameras are to be served: the one served last stands at the end.
        self._slots: dict[str, Frame | None] = dict.fromkeys(cameras)

    def put(self, frame: Frame) -> Frame | None:
        """Store the newest frame of its camera; returns the one that it overwrites."""
        old = self._slots[frame.camera]
        self._slots[frame.camera] = frame
        return old

    def take(self) -> Frame | None:
        """The waiting frame of the camera whose turn it is; several calls give frames of several cameras."""
        for camera, frame in self._slots.items():
            if frame is not None:
                del self._slots[camera]
                self._slots[camera] = None
                return frame
        return None

    def is_free(self, camera: str) -> bool:
        return self._slots[camera] is None

    def clear(self) -> list[Frame]:
        """Take out everything."""
        frames = [frame for frame in self._slots.values() if frame is not None]
        self._slots = dict.fromkeys(self._slots)
        return frames

    def __len__(self) -> int:
        return sum(frame is not None for frame in self._slots.values())
