"""The thread of one camera: decodes its newest image once for all DNNs, into a buffer of the host, and offers it.

If the engines decode JPEG files on their devices, the file is stored in the buffer instead of the pixels.

A small raw image is decoded in the thread that receives it, because waking another thread takes longer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.common.jpeg_file import FrameImage, JpegFile
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import call_and_log_errors
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.admission import SWITCHED_OFF_MESSAGE, Admission, Refusal
from multi_dnn_ros.serving.decode_timing import DecodeTiming
from multi_dnn_ros.serving.host import Buffer, Host

log = logging.getLogger(__name__)

#: (height, width) -> memory for the image, (H, W, 3) uint8, C-contiguous.
Allocate = Callable[[int, int], npt.NDArray[np.uint8]]
#: Decodes an image as RGB into memory that it allocates with the given function, and returns it. Raises FrameError.
Decode = Callable[[Allocate], npt.NDArray[np.uint8]]
#: Checks a JPEG file and returns it; None if it has to be decoded on the CPU. Raises FrameError.
ReadJpeg = Callable[[], "JpegFile | None"]

#: Interval between retries while the host has no engine for the camera or no free buffer.
_RETRY_S = 0.02
#: Maximum time that close() waits for a frame that is being handed to the host, in addition to its timeout.
_LAST_OFFER_S = 0.1


@dataclass(frozen=True)
class _Arrival:
    """An image that is not decoded yet. dnns: the DNNs that it is for. read_jpeg: None: it is no JPEG file, or has to
    be decoded on the CPU.
    """

    frame: Frame
    decode: Decode
    dnns: tuple[str, ...]
    read_jpeg: ReadJpeg | None = None


class CameraDecoder(threading.Thread):
    """Decodes the newest image when a DNN needs a frame (see :class:`DecodeTiming`); until then it waits undecoded.

    host: a started host. accounts: the accounts that the host was started with; their `on_answered` must call
    :meth:`answered`.
    on_bad_image: called once for each image that cannot be decoded, in the thread that decodes it. clock: nanoseconds,
    monotonic.
    admission: which DNNs an image is for; None: all DNNs of the camera.
    """

    def __init__(
        self,
        camera: str,
        host: Host,
        accounts: Accounts,
        on_bad_image: Callable[[FrameError], None],
        clock: Callable[[], int] = time.monotonic_ns,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(name=f"decode-{camera}", daemon=True)
        self._camera = camera
        self._host = host
        self._accounts = accounts
        self._on_bad_image = on_bad_image
        self._clock = clock
        self._admission = admission or Admission()
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._wake = threading.Condition(self._lock)
        self._newest: _Arrival | None = None
        self._idle = False  # whether the thread waits for an image
        self._decodes_on_arrival = False  # whether the thread that called arrived() decides about the newest image
        self._error: Exception | None = None  # of decoding on arrival; the thread ends with it
        self._changes = 0  # arrivals and answers
        self._decode_timing = DecodeTiming()
        self._stores_files = False  # whether the last image was stored as a JPEG file
        self._closing = False
        self._offering = threading.Lock()  # held while a decoded frame is handed to the host
        self._abandoned = False

    # -- called from other threads

    def arrived(
        self,
        frame: Frame,
        decode: Decode,
        quick: bool = False,
        read_jpeg: ReadJpeg | None = None,
    ) -> None:
        """An image arrived. An undecoded image that it replaces is dropped. Blocks only if it decodes the image (see
        `quick`), and then only as :meth:`Host.offer` does.

        The image is also for the DNNs that the replaced one was for: a DNN with a limited rate gets a newer image
        instead of none.

        frame: without image. decode: called at most once. quick: decoding takes less time than waking the decoder's
        thread; the image is then decoded here if a DNN needs it now and the thread is idle. read_jpeg: called instead
        of `decode`, or before it, if the engines of the DNNs decode JPEG files on their devices. Calls of one camera
        must not overlap.
        """
        frame.received_ns = now_ns = self._clock()
        accounts, dnns = self._accounts, self._accounts.dnns_of(self._camera)
        accounts.arrived(self._camera)
        refusals = self._admission.refusals(self._camera, dnns, now_ns)
        with self._lock:
            self._decode_timing.arrived(now_ns)
            replaced = self._newest
            waiting = () if replaced is None else self._enabled(replaced.dnns)
            recipients = tuple(dnn for dnn in dnns if dnn not in refusals or dnn in waiting)
            if recipients:
                self._newest = _Arrival(frame, decode, recipients, read_jpeg)
            elif replaced is not None:  # its DNNs have been switched off since
                self._newest = None
            self._decodes_on_arrival = quick and self._idle and not self._closing and self._newest is not None
            self._changed()
        try:
            self._count_lost(frame, refusals, recipients, replaced)
        finally:
            if self._decodes_on_arrival:
                self._decode_on_arrival()

    def _count_lost(
        self, frame: Frame, refusals: dict[str, Refusal], recipients: tuple[str, ...], replaced: _Arrival | None
    ) -> None:
        """Count the DNNs that do not get an arrived image, and the image that it has replaced."""
        for dnn, (reason, message) in refusals.items():
            if dnn not in recipients:
                self._accounts.refused(frame, dnn, reason, message)
        if replaced is None:
            return
        if self._host.has_engine_for(self._camera):
            reason, message = DropReason.OVERWRITTEN, "a newer image replaced it before decoding"
        else:
            reason, message = DropReason.ENGINE_LOST, "no engine process serves the camera at this moment"
        self._drop_for(replaced.frame, replaced.dnns, reason, message)

    def admission_changed(self) -> None:
        """A DNN was switched on or off by its parameter; a waiting image may no longer be for any DNN."""
        with self._lock:
            self._changed()

    def answered(self, dnn: str, handed_ns: int, timing: Timing | None) -> None:
        """A DNN has answered a frame that was handed to the engine at `handed_ns`. timing: None for a drop."""
        with self._lock:
            if timing is not None:
                self._decode_timing.answered(dnn, handed_ns, timing.finished_ns)
                if self._stores_files:  # the engine decodes, too
                    self._decode_timing.decoded(timing.decode_ns)
            self._changed()

    def close(self, timeout_s: float) -> bool:
        """End the thread; False on timeout. Call it when no more images arrive.

        The waiting image is still decoded and offered if the host has a free buffer; otherwise it is dropped. An image
        that is still being decoded at the timeout is dropped, too: afterwards the host may serve for other accounts.
        """
        with self._lock:
            self._closing = True
            self._changed()
        if self.ident is not None:
            self.join(timeout_s)
            self._abandoned = True  # a frame that is still being decoded, here or on arrival, is dropped
            if self._offering.acquire(timeout=_LAST_OFFER_S):
                self._offering.release()  # frames offered before are unanswered frames of the accounts
        with self._lock:
            waiting, self._newest = self._newest, None
        if waiting is not None:
            message = "the node stopped before the image was decoded"
            self._drop_for(waiting.frame, waiting.dnns, DropReason.SHUTDOWN, message)
        return not self.is_alive()

    # -- the thread

    def run(self) -> None:
        import cv2  # here: processes without images start sooner

        cv2.setNumThreads(1)  # each camera has a thread; on 32 cores OpenCV's own take nine times the CPU time
        try:
            while self._wait_until_needed():
                self._decode_newest()
        except BaseException:  # an error of the host or the accounts; the camera must not stop silently
            log.exception(
                "the decoding thread of camera %s ended with an error; its images are no longer processed: restart the "
                "node",
                self._camera,
            )

    def _changed(self) -> None:
        """Note a change. Without a waiting image the thread has nothing to decide and is not woken."""
        self._changes += 1
        if self._has_work():
            self._wake.notify()

    def _has_work(self) -> bool:
        """Whether the thread has something to decide; the caller holds the lock."""
        waiting = self._newest is not None and not self._decodes_on_arrival
        return waiting or self._closing or self._error is not None

    def _decode_on_arrival(self) -> None:
        """Decode the newest image in this thread if it is needed now; otherwise leave it to the decoder's thread."""
        try:
            has_engine, healthy = self._host.has_engine_for(self._camera), self._accounts.enabled_dnns(self._camera)
            with self._lock:
                arrival = self._newest
                dnns = () if arrival is None else self._enabled_and_healthy(arrival, healthy)
                needed = arrival is not None and dnns and has_engine and self._remaining_s(arrival.frame, dnns) <= 0
            if needed:
                self._decode_newest(wait_s=0.0)
        except Exception as error:  # of the host or the accounts
            self._error = error
        finally:
            with self._lock:
                self._decodes_on_arrival = False
                if self._has_work():
                    self._wake.notify()

    def _wait_until_needed(self) -> bool:
        """Wait until an image should be decoded; False: the thread should end."""
        while True:
            with self._lock:
                self._idle = True
                self._wake.wait_for(self._has_work)
                self._idle = False
                if self._error is not None:
                    raise self._error
                changes = self._changes
            # Without the lock, because the host takes locks of its own.
            has_engine = self._host.has_engine_for(self._camera)
            healthy = self._accounts.enabled_dnns(self._camera)
            with self._lock:
                if self._newest is None:
                    if self._closing:
                        return False
                    continue  # arrived() has dropped it meanwhile
                dnns = self._enabled_and_healthy(self._newest, healthy)
                if has_engine and dnns:
                    remaining_s = 0.0 if self._closing else self._remaining_s(self._newest.frame, dnns)
                    if remaining_s <= 0:
                        return True
                elif self._closing:
                    return False
                else:
                    remaining_s = _RETRY_S
                lost = None
                if dnns:
                    self._wake.wait_for(lambda changes=changes: self._changes != changes, remaining_s)  # type: ignore[misc]
                else:
                    lost, self._newest = self._newest, None
            if lost is not None:
                message = "every DNN that the image is for is disabled"
                self._drop_for(lost.frame, lost.dnns, DropReason.DISABLED, message)

    def _remaining_s(self, frame: Frame, dnns: tuple[str, ...]) -> float:
        """Seconds until the first of the DNNs needs the frame; the caller holds the lock."""
        arrived_ns = frame.received_ns
        due_ns = min(
            self._decode_timing.due_ns(dnn, arrived_ns, self._accounts.handed_ns((dnn, self._camera))) for dnn in dnns
        )
        return (due_ns - self._clock()) / 1e9

    def _decode_newest(self, wait_s: float = _RETRY_S) -> None:
        """Decode into a free buffer, waiting `wait_s` for one; until there is one, newer images still replace the
        waiting one.
        """
        buffer = self._host.buffer(self._camera, wait_s)
        if buffer is None:
            return
        with self._lock:
            arrival, self._newest = self._newest, None
        dnns = () if arrival is None else self._enabled(arrival.dnns)
        if arrival is None or not dnns:  # dropped by close() meanwhile, or no longer for any DNN
            buffer.release()
            if arrival is not None:
                self._drop_switched_off(arrival.frame, arrival.dnns, ())
            return
        frame = arrival.frame
        self._drop_switched_off(frame, arrival.dnns, dnns)
        begin_ns = self._clock()
        try:
            image = self._image(arrival, buffer, dnns)
        except Exception as error:
            buffer.release()
            bad_image = error if isinstance(error, FrameError) else FrameError(f"{type(error).__name__}: {error}")
            self._accounts.lost(frame, DropReason.BAD_IMAGE, str(bad_image), dnns)
            call_and_log_errors(self._on_bad_image, bad_image)
            return
        frame.set_image(image, decode_ns=self._clock() - begin_ns)
        self._offer(frame, buffer, dnns)

    def _image(self, arrival: _Arrival, buffer: Buffer, dnns: tuple[str, ...]) -> FrameImage:
        """The image of an arrival in the buffer: its JPEG file if the engines decode it, otherwise the pixels."""
        if arrival.read_jpeg is not None and self._host.decodes_jpeg(self._camera, dnns):
            file = arrival.read_jpeg()
            memory = None if file is None else buffer.file(file.data.nbytes)
            if file is not None and memory is not None:
                return file.copy(memory)
        return arrival.decode(buffer.image)

    def _offer(self, frame: Frame, buffer: Buffer, dnns: tuple[str, ...]) -> None:
        with self._lock:
            self._stores_files = isinstance(frame.source, JpegFile)
            if not self._stores_files:
                self._decode_timing.decoded(frame.decode_ns)
        with self._offering:
            if not self._abandoned:
                self._hand_over(frame, buffer, dnns)
                return
        buffer.release()
        self._accounts.lost(frame, DropReason.SHUTDOWN, "the node stopped before the image was decoded", dnns)

    def _hand_over(self, frame: Frame, buffer: Buffer, dnns: tuple[str, ...]) -> None:
        number = self._accounts.open(frame, buffer, dnns)
        try:
            self._host.offer(number, frame, buffer, dnns)
        except Exception as error:  # the host was stopped meanwhile, or has failed: settle the frame
            log.exception(
                "a frame of camera %s could not be handed to the engine; it is dropped as engine_lost", self._camera
            )
            for dnn in dnns:
                self._accounts.drop(number, dnn, DropReason.ENGINE_LOST, f"{type(error).__name__}: {error}")

    def _enabled(self, dnns: tuple[str, ...]) -> tuple[str, ...]:
        """The DNNs among `dnns` that are not switched off by their parameter."""
        return tuple(dnn for dnn in dnns if self._admission.is_enabled(dnn))

    def _enabled_and_healthy(self, arrival: _Arrival, healthy: tuple[str, ...]) -> tuple[str, ...]:
        """The DNNs of an image that are neither switched off nor disabled. healthy: those that are not disabled."""
        return tuple(dnn for dnn in self._enabled(arrival.dnns) if dnn in healthy)

    def _drop_for(self, frame: Frame, dnns: tuple[str, ...], reason: DropReason, message: str) -> None:
        """Drop an undecoded image for these DNNs; for those switched off by their parameter, that is the reason."""
        enabled = self._enabled(dnns)
        self._drop_switched_off(frame, dnns, enabled)
        self._accounts.lost(frame, reason, message, enabled)

    def _drop_switched_off(self, frame: Frame, dnns: tuple[str, ...], enabled: tuple[str, ...]) -> None:
        """Drop an undecoded image for those of `dnns` that are not in `enabled`: their parameter switches them off."""
        for dnn in dnns:
            if dnn not in enabled:
                self._accounts.refused(frame, dnn, DropReason.SWITCHED_OFF, SWITCHED_OFF_MESSAGE)
