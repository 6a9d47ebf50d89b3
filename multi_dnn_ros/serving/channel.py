"""Transport of pickled messages over a socket pair. Both ends run the same version of this package."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from typing import Any

_BUFFER_BYTES = 65_536
_LENGTH = struct.Struct("=I")


class Channel:
    """One end of the socket pair. Any thread may send; one thread receives.

    A message is its length (4 bytes) and its pickle. One system call receives all messages that have arrived.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._begin = self._end = 0  # range of the received bytes not taken yet

    def send(self, message: Any) -> None:
        """Raises ConnectionError if the other end is closed, BlockingIOError after the socket's send timeout."""
        data = pickle.dumps(message, protocol=5)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """Wait for the next message. Raises EOFError or ConnectionError if the other end is closed."""
        (size,) = _LENGTH.unpack(self._take(_LENGTH.size))
        return pickle.loads(self._take(size))  # noqa: S301  (sent by our own process)

    def close(self) -> None:
        self._socket.close()

    def _take(self, size: int) -> memoryview:
        """The next bytes, valid until the next call."""
        if self._begin + size > len(self._buffer):  # not enough space: move the bytes to a new buffer
            rest = self._buffer[self._begin : self._end]
            self._buffer = rest + bytearray(max(_BUFFER_BYTES, size) - len(rest))
            self._begin, self._end = 0, len(rest)
        view = memoryview(self._buffer)
        while self._end - self._begin < size:
            count = self._socket.recv_into(view[self._end :])
            if not count:
                raise EOFError("the other end of the channel is closed")
            self._end += count
        begin, self._begin = self._begin, self._begin + size
        if self._begin == self._end:
            self._begin = self._end = 0
        return view[begin : begin + size]
