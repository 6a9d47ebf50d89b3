"""What an engine process reports to the node's process: outcomes of frames, running jobs, log lines, why it ends."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, NoReturn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.channel import Channel
from multi_dnn_ros.serving.process_arguments import EXIT_DEVICE_FAILED
from multi_dnn_ros.serving.result_packing import pack
from multi_dnn_ros.serving.shared_status import SharedStatus
from multi_dnn_ros.serving.slots import SlotMemory

#: Maximum time for sending the cause of the end.
_ABORT_S = 0.5


class OutcomeSender:
    """Sends results, drops and failures; an :class:`multi_dnn_ros.serving.served_engine.OutcomeReceiver`.

    slots: by camera.
    """

    def __init__(self, channel: Channel, slots: dict[str, SlotMemory]) -> None:
        self._channel = channel
        self._slots = slots
        self._frame_in: dict[tuple[str, int], int] = {}  # by camera and slot, the number of the newest frame
        self._slot_of: dict[int, tuple[str, int]] = {}  # by number, camera and slot

    def expect(self, offer: wire.Offer) -> None:
        """Note the slot of an offered frame. The frame that was in the slot before has been answered.

        The same frame may be offered again, for other DNNs.
        """
        slot = offer.camera, offer.slot
        before = self._frame_in.get(slot)
        if before is not None and before != offer.number:
            self._slot_of.pop(before, None)
        self._frame_in[slot] = offer.number
        self._slot_of[offer.number] = slot

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        camera, slot = self._slot_of[number]
        data, large = pack(output, self._slots[camera].output(slot, dnn))
        self._channel.send(wire.FrameResult(number, dnn, timing, data, large))

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        self._channel.send(wire.FrameDropped(number, dnn, reason, message))

    def failure(self, failure: Failure) -> None:
        self._channel.send(wire.Failed(failure))


class StatusObserver:
    """Writes the running jobs to the shared status; ends the process when its device has failed.

    An :class:`multi_dnn_ros.engine.observer.Observer`. A GPU runs the operations of a DNN in order: when one ends, the
    next one has only just started, so its time counts from then.
    """

    def __init__(self, status: SharedStatus, channel: Channel) -> None:
        self._status = status
        self._channel = channel
        self._running = dict.fromkeys(status.dnns, 0)
        self._lock = threading.Lock()
        status.image_done()
        for dnn in status.dnns:
            status.jobs_done(dnn)

    def began(self, dnn: str) -> None:
        with self._lock:
            self._running[dnn] += 1
            if self._running[dnn] == 1:
                self._status.job_started(dnn, time.monotonic_ns())

    def ended(self, dnn: str) -> None:
        with self._lock:
            self._running[dnn] -= 1
            if self._running[dnn]:
                self._status.job_started(dnn, time.monotonic_ns())
            else:
                self._status.jobs_done(dnn)

    def image_began(self) -> None:
        self._status.image_started(time.monotonic_ns())

    def image_ended(self) -> None:
        self._status.image_done()

    def device_failed(self, dnn: str, error: BaseException) -> None:
        exit_with_cause(self._channel, summarize_error(error), EXIT_DEVICE_FAILED)


class ChannelLogHandler(logging.Handler):
    """Sends log records to the node's process."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send(wire.Logged(record.levelno, record.name, self.format(record)))
        except OSError:
            pass  # the node's process has ended, and this one is about to end
        except Exception:
            self.handleError(record)


def exit_with_cause(channel: Channel, cause: str, code: int) -> NoReturn:
    """Send the cause and exit at once, without cleaning up: after a fault any call into the driver may hang."""
    timer = threading.Timer(_ABORT_S, os._exit, (code,))  # another thread may hang while it holds the channel's lock
    timer.daemon = True
    try:
        timer.start()
        channel.send(wire.Aborting(cause))
    except (OSError, RuntimeError):  # the node's process has ended; no thread can be started
        pass
    finally:
        os._exit(code)
