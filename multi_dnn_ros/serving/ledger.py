"""The frames that one engine process has and has not answered; kept in the node's process, as the other one may die."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from multi_dnn_ros.serving.host import Buffer


@dataclass
class _Entry:
    buffer: Buffer
    waiting: set[str]


class Ledger:
    """Thread-safe. It holds the buffer of each frame until all DNNs of the process have answered, or it is closed.

    So a slot is not rewritten while the process may read it, also when the frame was given up meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._closed = False

    def add(self, number: int, buffer: Buffer, dnns: Iterable[str]) -> bool:
        """A frame is about to be handed to the process. False: the ledger is closed."""
        with self._lock:
            if self._closed:
                return False
            buffer.hold()
            self._entries[number] = _Entry(buffer, set(dnns))
            return True

    def buffer(self, number: int, dnn: str) -> Buffer | None:
        """With the frame that the DNN has not answered; None: it has, or never had it."""
        with self._lock:
            entry = self._entries.get(number)
            return entry.buffer if entry is not None and dnn in entry.waiting else None

    def answered(self, number: int, dnn: str) -> None:
        """A DNN needs the frame no more."""
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                return
            entry.waiting.discard(dnn)
            if entry.waiting:
                return
            del self._entries[number]
        entry.buffer.release()

    @property
    def closed(self) -> bool:
        """Whether it takes no more frames."""
        return self._closed

    def close(self) -> list[tuple[int, str]]:
        """The process is gone: frees its buffers. Returns what it has not answered: number and DNN."""
        with self._lock:
            self._closed = True
            entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.buffer.release()
        return [(number, dnn) for number, entry in entries.items() for dnn in sorted(entry.waiting)]
