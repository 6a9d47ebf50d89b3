"""The thread that decodes the JPEG files among the frames of an engine, before the DNNs get them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.job import DropCause
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DropReason

log = logging.getLogger(__name__)

_REPLACED: DropCause = (DropReason.OVERWRITTEN, "a newer image of the camera replaced it before it was decoded")
#: Names of DNNs.
Dnns = tuple[str, ...]


@dataclass(eq=False)
class _Waiting:
    """lost: dropped by abandon()."""

    frame: Frame
    dnns: Dnns
    lost: bool = False


class ImageThread(threading.Thread):
    """Decodes frames in the order in which they are put, of each camera the newest. Starts with the first one.

    A frame takes 1 to 2 ms on a GPU, and several times as long if DNNs keep it busy. In the thread of a DNN this would
    delay its results, and in a worker the jobs of all DNNs.

    pass_on: receives each decoded frame and its DNNs. refuse: receives those that are not decoded, with the reason.
    Both are called in this thread, in those that call `put` and, at the end, in the one that calls `abandon`. queue:
    nothing is decoded while it is paused. observer: notices a decoder that hangs.
    """

    def __init__(
        self,
        device: torch.device,
        queue: JobQueue,
        observer: Observer,
        clock: Callable[[], int],
        pass_on: Callable[[Frame, Dnns], None],
        refuse: Callable[[Frame, Dnns, DropCause], None],
    ) -> None:
        super().__init__(name="images", daemon=True)
        self._device = device
        self._queue = queue
        self._observer = observer
        self._clock = clock
        self._pass_on = pass_on
        self._refuse = refuse
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()  # the first one is being decoded
        self._closed = False

    # -- called from other threads

    def put(self, frame: Frame, dnns: Dnns) -> None:
        """Decode the frame after those put before; never blocks. Of a waiting frame of the same camera, only the DNNs
        are left that do not get this one.
        """
        with self._changed:
            closed = self._closed
            replaced = [] if closed else self._replace(_Waiting(frame, dnns))
            if not closed:
                if self.ident is None:
                    self.start()
                self._changed.notify_all()
        if closed:
            self._pass_on(frame, dnns)
        for older, lost in replaced:
            self._refuse(older, lost, _REPLACED)

    def holds(self, camera: str) -> bool:
        """Whether a frame of the camera waits or is being decoded; a later one must not overtake it."""
        if not self._waiting:
            return False
        with self._changed:
            return any(each.frame.camera == camera for each in self._waiting)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until all frames were passed on or refused. False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self) -> None:
        """End. Frames that wait are passed on undecoded: call this when the DNNs accept no more frames."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self, cause: DropCause) -> None:
        """Refuse the frames that were neither passed on nor refused."""
        with self._changed:
            lost = [each for each in self._waiting if not each.lost]
            for each in lost:
                each.lost = True
        for each in lost:
            self._refuse(each.frame, each.dnns, cause)

    def decode(self, frame: Frame, dnns: Dnns) -> DropCause | None:
        """Decode a frame in the calling thread. Returns why it cannot be decoded.

        A frame stays undecoded if the engine is stopped during a pause; its DNNs then accept no more frames.
        """
        begin_ns = self._clock()
        try:
            with self._queue.outside_jobs() as allowed:  # it allocates memory, which must not happen during a capture
                if not allowed:
                    return None
                self._observer.image_began()
                try:
                    frame.decode_for(self._device)
                finally:
                    self._observer.image_ended()
        except FrameError as error:
            return DropReason.BAD_IMAGE, str(error)
        except Exception as error:
            log.debug("an image of camera %s could not be decoded", frame.camera, exc_info=True)
            if is_device_failure(error):
                self._observer.device_failed(dnns[0], error)
            return DropReason.DNN_ERROR, f"decoding the image: {type(error).__name__}: {error}"
        frame.decode_ns += self._clock() - begin_ns
        return None

    def _replace(self, new: _Waiting) -> list[tuple[Frame, Dnns]]:
        """Add a frame, in the place of the one that it replaces. Returns the frames and DNNs that are lost by this."""
        lost: list[tuple[Frame, Dnns]] = []
        kept: deque[_Waiting] = deque()
        placed = False
        for older in self._waiting:
            # The first one is being decoded.
            replaced = bool(kept) and older.frame.camera == new.frame.camera and not older.lost
            both = tuple(dnn for dnn in older.dnns if replaced and dnn in new.dnns)
            if both:
                lost.append((older.frame, both))
                older.dnns = tuple(dnn for dnn in older.dnns if dnn not in both)
            if older.dnns:
                kept.append(older)
            elif not placed:
                kept.append(new)
                placed = True
        if not placed:
            kept.append(new)
        self._waiting = kept
        return lost

    # -- the thread

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                first, closed = self._waiting[0], self._closed
            cause = None if closed else self.decode(first.frame, first.dnns)
            with self._changed:
                lost, first.lost = first.lost, True
            if not lost and cause is None:
                self._pass_on(first.frame, first.dnns)
            elif not lost and cause is not None:
                self._refuse(first.frame, first.dnns, cause)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()
