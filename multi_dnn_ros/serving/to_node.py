"""What the engine process tells the node's process: answers, log lines, what it computes, and why it ends."""

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
from multi_dnn_ros.serving.board import Board
from multi_dnn_ros.serving.setup import EXIT_DEVICE_FAILED
from multi_dnn_ros.serving.slots import SlotMemory

#: How long the cause of the end may take to be sent.
_LAST_WORDS_S = 0.5


class Answers:
    """What became of the frames, to the node's process; see served_engine.Answers."""

    def __init__(self, channel: wire.Channel, slots: dict[str, SlotMemory]) -> None:
        self._channel = channel
        self._slots = slots
        self._newest: dict[tuple[str, int], int] = {}
        self._places: dict[int, tuple[str, int]] = {}

    def expect(self, offer: wire.Offer) -> None:
        """The frame lies in this slot. What lay there before has been answered."""
        place = offer.camera, offer.slot
        before = self._newest.get(place)
        if before is not None:
            self._places.pop(before, None)
        self._newest[place] = offer.number
        self._places[offer.number] = place

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        camera, slot = self._places[number]
        data, large = wire.pack(output, self._slots[camera].output(slot, dnn))
        self._channel.send(wire.Answer(number, dnn, timing, data, large))

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        self._channel.send(wire.Lost(number, dnn, reason, message))

    def failure(self, failure: Failure) -> None:
        self._channel.send(wire.Failed(failure))


class BoardObserver:
    """Writes on the board what the engine computes; ends the process when its device has failed.

    A GPU runs what a DNN has launched in order: what is left when one thing has ended began only then.
    """

    def __init__(self, board: Board, channel: wire.Channel) -> None:
        self._board = board
        self._channel = channel
        self._under_way = dict.fromkeys(board.dnns, 0)
        self._lock = threading.Lock()
        for dnn in board.dnns:
            board.ended(dnn)

    def began(self, dnn: str) -> None:
        with self._lock:
            self._under_way[dnn] += 1
            if self._under_way[dnn] == 1:
                self._board.began(dnn, time.monotonic_ns())

    def ended(self, dnn: str) -> None:
        with self._lock:
            self._under_way[dnn] -= 1
            if self._under_way[dnn]:
                self._board.began(dnn, time.monotonic_ns())
            else:
                self._board.ended(dnn)

    def device_failed(self, dnn: str, error: BaseException) -> None:
        die(self._channel, summarize_error(error), EXIT_DEVICE_FAILED)


class ChannelLog(logging.Handler):
    """Log records of the package to the node's process."""

    def __init__(self, channel: wire.Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send(wire.Logged(record.levelno, record.name, self.format(record)))
        except OSError:
            pass  # the other end is gone, and soon so are we
        except Exception:
            self.handleError(record)


def die(channel: wire.Channel, cause: str, code: int) -> NoReturn:
    """End at once: nothing that would clean up is sure to return now."""
    last = threading.Timer(_LAST_WORDS_S, os._exit, (code,))  # another thread may be stuck in the midst of sending
    last.daemon = True
    try:
        last.start()
        channel.send(wire.Dying(cause))
    except (OSError, RuntimeError):  # the other end is gone; no thread can be started
        pass
    finally:
        os._exit(code)
