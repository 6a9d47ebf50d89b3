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

#: Names of DNNs.
Dnns = tuple[str, ...]


@dataclass(eq=False)
class _Waiting:
    """lost: dropped by abandon()."""

    frame: Frame
    dnns: Dnns
    lost: bool = False


class ImageThread(threading.Thread):
    """Decodes frames in the order in which they are put. Starts with the first one.

    A frame takes 1 to 2 ms on a GPU, and several times as long if DNNs keep it busy. In the thread of a DNN this would
    delay its results, and in a worker the jobs of all DNNs.

    pass_on: receives each decoded frame and its DNNs. refuse: receives those that cannot be decoded, with the reason.
    Both are called in this thread, or by the caller of `put` after `close`. queue: nothing is decoded while it is
    paused. observer: is told that the first of the DNNs is computing, so that a decoder that hangs is noticed.
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
        """Decode the frame after those put before; never blocks."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._waiting.append(_Waiting(frame, dnns))
                if self.ident is None:
                    self.start()
                self._changed.notify_all()
        if closed:
            self._pass_on(frame, dnns)

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
        """Decode a frame in the calling thread. Returns why it cannot be decoded."""
        dnn = dnns[0]
        begin_ns = self._clock()
        self._observer.began(dnn)
        try:
            with self._queue.outside_jobs():  # it allocates memory, which must not happen during a capture
                frame.decode_for(self._device)
        except FrameError as error:
            return DropReason.BAD_IMAGE, str(error)
        except Exception as error:
            if is_device_failure(error):
                self._observer.device_failed(dnn, error)
            log.exception("an image of camera %s could not be decoded", frame.camera)
            return DropReason.DNN_ERROR, f"decoding the image: {type(error).__name__}: {error}"
        finally:
            self._observer.ended(dnn)
        frame.decode_ns += self._clock() - begin_ns
        return None

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
