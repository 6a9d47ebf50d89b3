"""The unanswered frames of one engine process; kept in the node's process, because the engine process may end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from multi_dnn_ros.serving.host import Buffer


@dataclass
class _Entry:
    buffer: Buffer
    unanswered: set[str]  # DNNs


class UnansweredFrames:
    """Thread-safe. Holds the buffer of each frame until all DNNs of the process have answered it, or until `close`.

    A slot is therefore not reused while the process may read it, even if the accounts have dropped the frame already.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._closed = self._is_draining = False

    def add(self, number: int, buffer: Buffer, dnns: Iterable[str]) -> bool:
        """Add a frame before it is sent to the process; False if the process has ended or accepts no more frames.

        A frame that was added for some DNNs may be added again for others.
        """
        with self._lock:
            if self._closed or self._is_draining:
                return False
            entry = self._entries.get(number)
            if entry is None:
                buffer.hold()
                self._entries[number] = _Entry(buffer, set(dnns))
            else:
                entry.unanswered.update(dnns)
            return True

    def buffer(self, number: int, dnn: str) -> Buffer | None:
        """The buffer of a frame; None if the DNN has answered it or never got it."""
        with self._lock:
            entry = self._entries.get(number)
            return entry.buffer if entry is not None and dnn in entry.unanswered else None

    def answered(self, number: int, dnn: str) -> None:
        """A DNN has answered the frame."""
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                return
            entry.unanswered.discard(dnn)
            if entry.unanswered:
                return
            del self._entries[number]
        entry.buffer.release()

    def stop_accepting(self) -> None:
        """Accept no more frames, until :meth:`start_accepting`."""
        with self._lock:
            self._is_draining = True

    def start_accepting(self) -> None:
        """Accept frames again."""
        with self._lock:
            self._is_draining = False

    def may_answer(self, dnn: str) -> bool:
        """Whether the DNN has frames without an answer, or may still get some."""
        with self._lock:
            if not self._closed and not self._is_draining:
                return True
            return any(dnn in entry.unanswered for entry in self._entries.values())

    @property
    def is_draining(self) -> bool:
        """Whether the process is finishing its frames and accepts no more."""
        return self._is_draining

    @property
    def closed(self) -> bool:
        """Whether the process has ended."""
        return self._closed

    def close(self) -> list[tuple[int, str]]:
        """The process has ended: release all buffers. Returns number and DNN of each missing answer."""
        with self._lock:
            self._closed = True
            entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.buffer.release()
        return [(number, dnn) for number, entry in entries.items() for dnn in sorted(entry.unanswered)]
