"""The thread of one camera: decodes its newest image once for all DNNs, into shared memory, and offers it to the host.

A DNN that is slower than its camera processes one image out of several. Decoding the others would waste CPU time, so an
image waits undecoded until a DNN is expected to need it. A wrong expectation costs an unnecessary decode or a few
milliseconds, but no frame is lost: an idle DNN gets the newest one at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import call_and_log_errors
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.shared_memory import Slot

log = logging.getLogger(__name__)

#: (height, width) -> memory for the image, (H, W, 3) uint8, C-contiguous.
Allocate = Callable[[int, int], npt.NDArray[np.uint8]]
#: Decodes an image as RGB into memory that it allocates with the given function, and returns it. Raises FrameError.
Decode = Callable[[Allocate], npt.NDArray[np.uint8]]

#: Interval between retries while the host has no engine for the camera or no free buffer.
_RETRY_S = 0.02
#: Number of periods and decode times from which the next ones are expected.
_SAMPLES = 16
#: Added to the decode time: waking the threads, handing the frame over.
_MARGIN_NS = 2_000_000
_DISABLED = "the DNN was disabled or switched off before the image was decoded"


@dataclass(frozen=True)
class _Arrival:
    """An image that is not decoded yet. dnns: the DNNs that it is for."""

    frame: Frame
    decode: Decode
    dnns: tuple[str, ...]


class CameraDecoder(threading.Thread):
    """Decodes the newest image of a camera when a DNN needs a frame; an older one that still waits is dropped.

    host: a started host. ledger: the ledger that the host was started with, whose `on_answered` calls :meth:`wake`.
    on_bad_image: called once for each image that cannot be decoded. clock: nanoseconds, monotonic.
    """

    def __init__(
        self,
        camera: str,
        host: Host,
        ledger: Ledger,
        on_bad_image: Callable[[FrameError], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(name=f"decode-{camera}", daemon=True)
        self._camera = camera
        self._host = host
        self._ledger = ledger
        self._dnns = ledger.dnns_of(camera)
        self._on_bad_image = on_bad_image
        self._clock = clock
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._changed = threading.Condition(self._lock)
        self._newest: _Arrival | None = None
        self._changes = 0  # arrivals and answers
        self._last_arrival_ns: int | None = None
        self._periods_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._decodes_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._closing = False

    # -- called from other threads

    def arrived(self, frame: Frame, decode: Decode) -> None:
        """An image arrived; never blocks. An undecoded image that it replaces is dropped.

        The image is also for the DNNs that the replaced one was for: a DNN with a limited rate gets a newer image
        instead of none.

        frame: without image. decode: called at most once. Calls of one camera must not overlap.
        """
        frame.received_ns = now_ns = self._clock()
        with self._lock:
            replaced = self._newest
            waiting = replaced.dnns if replaced is not None else ()
            dnns = self._ledger.arrived(frame, also_for=waiting)
            if self._last_arrival_ns is not None:
                self._periods_ns.append(now_ns - self._last_arrival_ns)
            self._last_arrival_ns = now_ns
            # Without a DNN for the new image, those of the replaced one have been switched off.
            self._newest = _Arrival(frame, decode, dnns) if dnns else None
            self._note_change()
        if replaced is not None:
            reason, message = DropReason.OVERWRITTEN, "a newer image replaced it before decoding"
            if not self._host.serves(self._dnns):
                reason, message = DropReason.ENGINE_LOST, "no engine process serves the camera at this moment"
            self._ledger.lose(replaced.frame, replaced.dnns, reason, message)

    def wake(self) -> None:
        """A DNN has answered a frame of the camera, or was switched on or off."""
        with self._lock:
            self._note_change()

    def close(self, timeout_s: float) -> bool:
        """End the thread; False on timeout. Call it when no more images arrive.

        The waiting image is still decoded and offered if the host has a free buffer; otherwise it is dropped.
        """
        with self._lock:
            self._closing = True
            self._note_change()
        if self.ident is not None:
            self.join(timeout_s)
        with self._lock:
            waiting, self._newest = self._newest, None
        if waiting is not None:
            message = "the node stopped before the image was decoded"
            self._ledger.lose(waiting.frame, waiting.dnns, DropReason.SHUTDOWN, message)
        return not self.is_alive()

    def _note_change(self) -> None:
        """Without a waiting image the thread has nothing to decide and is not woken."""
        self._changes += 1
        if self._newest is not None or self._closing:
            self._changed.notify()

    # -- the thread

    def run(self) -> None:
        import cv2  # here: processes without images start sooner

        cv2.setNumThreads(1)  # each camera has a thread; on 32 cores OpenCV's own take nine times the CPU time
        try:
            while self._step():
                pass
        except BaseException:  # an error of the host or the ledger; the camera must not stop silently
            log.exception(
                "the decoding thread of camera %s ended with an error; its images are no longer processed: restart the "
                "node",
                self._camera,
            )

    def _step(self) -> bool:
        """Wait for an image, then decode it or wait until that is needed; False: the thread should end."""
        with self._lock:
            while self._newest is None and not self._closing:
                self._changed.wait()
            changes, arrival = self._changes, self._newest
        if arrival is None:
            return False
        dnns = self._ledger.wanted_by(arrival.dnns)
        serves = self._host.serves(self._dnns)
        if self._closing and not (dnns and serves):
            return False
        wait_s = _RETRY_S
        if dnns and serves:
            wait_s = 0.0 if self._closing else self._remaining_s(arrival.frame, dnns)
            if wait_s <= 0.0:
                if (buffer := self._host.buffer(self._camera, _RETRY_S)) is not None:
                    self._decode_newest(buffer)
                return True  # without a free buffer, newer images still replace the waiting one
        with self._lock:
            if dnns:
                self._changed.wait_for(lambda: self._changes != changes, wait_s)
                return True
            if self._newest is not arrival:
                return True
            self._newest = None
        self._ledger.lose(arrival.frame, arrival.dnns, DropReason.DISABLED, _DISABLED)
        return True

    def _remaining_s(self, frame: Frame, dnns: tuple[str, ...]) -> float:
        """Seconds until the image should be decoded: at once if one of the DNNs has no frame, if its times are not
        known yet, or if the next image could not be ready before it needs one; otherwise just in time for the first of
        them.
        """
        start_ns = self._ledger.next_start_ns(self._camera, dnns)
        lead_ns = _MARGIN_NS + max(self._decodes_ns, default=0)
        if not self._periods_ns or frame.received_ns + median(self._periods_ns) + lead_ns >= start_ns:
            return 0.0
        return (start_ns - lead_ns - self._clock()) / 1e9

    def _decode_newest(self, buffer: Slot) -> None:
        with self._lock:
            arrival, self._newest = self._newest, None
        if arrival is None:  # dropped by close() meanwhile
            buffer.release()
            return
        frame, dnns = arrival.frame, self._ledger.wanted_by(arrival.dnns)
        if dnns != arrival.dnns:
            unwanted = [dnn for dnn in arrival.dnns if dnn not in dnns]
            self._ledger.lose(frame, unwanted, DropReason.DISABLED, _DISABLED)
        if not dnns:
            buffer.release()
            return
        begin_ns = self._clock()
        try:
            frame.image = arrival.decode(buffer.image)
        except Exception as error:
            buffer.release()
            bad_image = error if isinstance(error, FrameError) else FrameError(f"{type(error).__name__}: {error}")
            self._ledger.lose(frame, dnns, DropReason.BAD_IMAGE, str(bad_image))
            call_and_log_errors(self._on_bad_image, bad_image)
            return
        frame.decode_ns = self._clock() - begin_ns
        self._decodes_ns.append(frame.decode_ns)
        self._host.offer(self._ledger, frame, buffer, dnns)
