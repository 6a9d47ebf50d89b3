"""The thread of one camera: decodes its newest image, once for all DNNs, into memory of the host, and offers it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import guarded
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.demand import Demand
from multi_dnn_ros.serving.host import Buffer, Host

log = logging.getLogger(__name__)

#: From the image's (height, width) to the memory that it goes to, (H, W, 3) uint8, C-contiguous.
Allocate = Callable[[int, int], npt.NDArray[np.uint8]]
#: Writes the image, RGB, into the room that it asks for, and returns that. Raises FrameError.
Decode = Callable[[Allocate], npt.NDArray[np.uint8]]

#: How often a host without an engine for the camera, or without a free buffer, is asked again.
_RETRY_S = 0.02


@dataclass(frozen=True)
class _Arrival:
    """An image that is not decoded yet."""

    frame: Frame
    decode: Decode


class CameraDecoder(threading.Thread):
    """Decodes while some DNN wants a frame of the camera; until then the newest image waits undecoded.

    host: started. accounts: those that the host was started with; their `on_answered` must come to :meth:`answered`.
    on_bad: told once of each image that cannot be decoded, in this thread. clock: nanoseconds, monotonic.
    """

    def __init__(
        self,
        camera: str,
        host: Host,
        accounts: Accounts,
        on_bad: Callable[[FrameError], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(name=f"decode-{camera}", daemon=True)
        self._camera = camera
        self._host = host
        self._accounts = accounts
        self._on_bad = on_bad
        self._clock = clock
        self._wake = threading.Condition()
        self._newest: _Arrival | None = None
        self._changes = 0  # arrivals and answers
        self._demand = Demand()
        self._closing = False

    # -- called by others

    def arrived(self, frame: Frame, decode: Decode, late: bool = False) -> None:
        """An image came in; never blocks. The image that it replaces undecoded is lost.

        frame: without image. decode: called at most once, in this thread. late: an image that was sent after this one
        has arrived before; this one is lost.
        """
        frame.received_ns = now_ns = self._clock()
        self._accounts.arrived(self._camera)
        if late:
            self._accounts.lost(frame, DropReason.OVERWRITTEN, "a newer image of its camera had arrived before it")
            return
        with self._wake:
            lost = self._newest
            self._newest = _Arrival(frame, decode)
            self._demand.arrived(now_ns)
            self._changed()
        if lost is None:
            return
        if self._host.serves(self._camera):
            self._accounts.lost(lost.frame, DropReason.OVERWRITTEN, "a newer image came before it was decoded")
        else:
            message = "no engine process serves the camera at this moment"
            self._accounts.lost(lost.frame, DropReason.ENGINE_LOST, message)

    def answered(self, dnn: str, handed_ns: int, timing: Timing | None) -> None:
        """A DNN has answered a frame that it was handed at `handed_ns`. timing: of its result; None: it lost it."""
        with self._wake:
            if timing is not None:
                self._demand.answered(dnn, handed_ns, timing.finished_ns)
            self._changed()

    def close(self, timeout_s: float) -> bool:
        """End the thread, after the image that waits was offered, if there is room; False when it takes longer.

        To be called when no more images arrive; one that still waits is lost.
        """
        with self._wake:
            self._closing = True
            self._changed()
        if self.ident is not None:
            self.join(timeout_s)
        with self._wake:
            lost, self._newest = self._newest, None
        if lost is not None:
            self._accounts.lost(lost.frame, DropReason.SHUTDOWN, "the node stopped before the image was decoded")
        return not self.is_alive()

    # -- the thread

    def run(self) -> None:
        try:
            while self._wait_until_wanted():
                self._decode_newest()
        except BaseException:  # of the host or the accounts: without this the camera would be silent unnoticed
            log.exception("the decoding thread of camera %s ended", self._camera)

    def _changed(self) -> None:
        self._changes += 1
        self._wake.notify()

    def _wait_until_wanted(self) -> bool:
        """Wait for an image that is to be decoded now; False: the thread is to end."""
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._newest is not None or self._closing)
                seen = self._changes
            # Without the lock: the host may have to take locks of its own.
            serves = self._host.serves(self._camera)
            dnns = self._accounts.enabled_dnns(self._camera)
            with self._wake:
                if self._newest is None:
                    return False
                if serves and dnns:
                    left_s = 0.0 if self._closing else self._left_s(self._newest.frame, dnns)
                    if left_s <= 0:
                        return True
                elif self._closing:
                    return False
                else:
                    left_s = _RETRY_S
                lost = None
                if dnns:
                    self._wake.wait_for(lambda seen=seen: self._changes != seen, left_s)  # type: ignore[misc]
                else:
                    lost, self._newest = self._newest, None
            if lost is not None:
                self._accounts.lost(lost.frame, DropReason.DISABLED, "every DNN of the camera is disabled")

    def _left_s(self, frame: Frame, dnns: tuple[str, ...]) -> float:
        """Seconds until the first of the DNNs wants the frame; the caller holds the lock."""
        arrived_ns = frame.received_ns
        due_ns = min(
            self._demand.due_ns(dnn, arrived_ns, self._accounts.handed_ns((dnn, self._camera))) for dnn in dnns
        )
        return (due_ns - self._clock()) / 1e9

    def _decode_newest(self) -> None:
        """Into a free buffer; while there is none, newer images still replace the one that waits."""
        buffer = self._host.buffer(self._camera, _RETRY_S)
        if buffer is None:
            return
        with self._wake:
            arrival, self._newest = self._newest, None
        if arrival is None:  # lost by close() meanwhile
            buffer.release()
            return
        frame = arrival.frame
        begin_ns = self._clock()
        try:
            image = arrival.decode(buffer.image)
        except Exception as error:
            buffer.release()
            bad = error if isinstance(error, FrameError) else FrameError(f"{type(error).__name__}: {error}")
            self._accounts.lost(frame, DropReason.BAD_IMAGE, str(bad))
            guarded(self._on_bad, bad)
            return
        frame.set_image(image, decode_ns=self._clock() - begin_ns)
        self._offer(frame, buffer)

    def _offer(self, frame: Frame, buffer: Buffer) -> None:
        with self._wake:
            self._demand.decoded(frame.decode_ns)
        dnns = self._accounts.dnns_of(self._camera)
        number = self._accounts.open(frame, buffer, dnns)
        try:
            self._host.offer(number, frame, buffer)
        except Exception as error:  # a host that was stopped meanwhile, or is broken: the frame must not stay open
            log.exception("a frame of camera %s could not be offered", self._camera)
            for dnn in dnns:
                self._accounts.drop(number, dnn, DropReason.ENGINE_LOST, f"{type(error).__name__}: {error}")
