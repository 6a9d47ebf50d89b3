"""What the node's process and an engine process say to each other, over a socket pair.

Both ends are ours and of one version: messages are pickled dataclasses. Images and large results do not travel here but
in shared memory (:mod:`multi_dnn_ros.serving.slots`).
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.host import Build, Description, Progress
from multi_dnn_ros.settings.schema import NodeConfig

#: Arrays of a result from this size on go through shared memory.
LARGE_BYTES = 16_384
_BUFFER_BYTES = 65_536
_LENGTH = struct.Struct("=I")


# -- node to engine process


@dataclass(frozen=True)
class Check:
    """Look for what is wrong with the settings; answered with Checked."""

    config: NodeConfig


@dataclass(frozen=True)
class Configure:
    """Make the DNNs `dnns` of `config` ready; answered with Progressed, then Configured or Refused.

    in_background: at low CPU priority, because another engine process serves meanwhile. judge: measure the capacity.
    """

    config: NodeConfig
    dnns: tuple[str, ...]
    build: Build
    in_background: bool = False
    judge: bool = True


@dataclass(frozen=True)
class Start:
    """Begin to serve. runtime: of each DNN, the runtime parameters by name."""

    runtime: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Offer:
    """A frame, in a slot of its camera. Times: nanoseconds, on the monotonic clock; stamp_ns: the header's.

    dnns: who takes it, and answers once each. A process may hold DNNs that another one serves at this moment.
    """

    number: int
    camera: str
    slot: int
    height: int
    width: int
    stamp_ns: int
    received_ns: int
    decode_ns: int
    dnns: tuple[str, ...]


@dataclass(frozen=True)
class Update:
    """A runtime parameter has changed."""

    dnn: str
    name: str
    value: Any


@dataclass(frozen=True)
class Stop:
    """Finish the frames that wait and are under way; answered with Stopped."""

    timeout_s: float


@dataclass(frozen=True)
class Quit:
    """End the process."""


# -- engine process to node


@dataclass(frozen=True)
class Ready:
    """Imports are done; the process takes Check and Configure."""

    versions: Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Progressed:
    progress: Progress


@dataclass(frozen=True)
class Configured:
    description: Description


@dataclass(frozen=True)
class Refused:
    """Configuring failed. expected: a mistake in parameters or files; else `text` is a traceback."""

    text: str
    expected: bool


@dataclass(frozen=True)
class Started:
    pass


@dataclass(frozen=True)
class Answer:
    """A DNN's result for a frame.

    output: pickled. large: sizes of the arrays that are in the slot, one after another.
    """

    number: int
    dnn: str
    timing: Timing
    output: bytes
    large: tuple[int, ...]


@dataclass(frozen=True)
class Lost:
    """A DNN lost a frame."""

    number: int
    dnn: str
    reason: DropReason
    message: str


@dataclass(frozen=True)
class Failed:
    failure: Failure


@dataclass(frozen=True)
class Logged:
    """A line for the log. level: as in :mod:`logging`."""

    level: int
    name: str
    text: str


@dataclass(frozen=True)
class Memory:
    """Bytes by name, about once a second. ended: names of threads that ended by an error."""

    values: Mapping[str, int]
    ended: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """hanging: names of threads that did not end in time."""

    hanging: tuple[str, ...]


@dataclass(frozen=True)
class Dying:
    """The process cannot go on (a CUDA fault, out of memory) and ends itself. cause: in words."""

    cause: str


class Channel:
    """One end of the socket pair. Any thread sends; one thread receives.

    A message is its length, 4 bytes, and its pickle. Often several wait: they are received together.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._begin = self._end = 0  # what was received and not taken out

    def send(self, message: Any) -> None:
        """ConnectionError when the other end is gone."""
        data = pickle.dumps(message, protocol=5)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """The next message; blocks. EOFError or ConnectionError when the other end is gone."""
        (size,) = _LENGTH.unpack(self._take(_LENGTH.size))
        return pickle.loads(self._take(size))  # noqa: S301  (from a process of ours)

    def close(self) -> None:
        self._socket.close()

    def _take(self, size: int) -> memoryview:
        """The next bytes, valid until the next call."""
        if self._begin + size > len(self._buffer):  # else what is there already stays where it is
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


def pack(output: Any, room: npt.NDArray[np.uint8]) -> tuple[bytes, tuple[int, ...]]:
    """A result for an Answer: large arrays are copied into `room`, (bytes,) uint8, as far as they fit."""
    sizes: list[int] = []
    used = 0

    def elsewhere(buffer: pickle.PickleBuffer) -> bool:
        """Whether pickle is to write the array itself."""
        nonlocal used
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES or used + raw.nbytes > len(room):
            return True
        room[used : used + raw.nbytes] = np.frombuffer(raw, dtype=np.uint8)
        sizes.append(raw.nbytes)
        used += raw.nbytes
        return False

    return pickle.dumps(output, protocol=5, buffer_callback=elsewhere), tuple(sizes)


def unpack(answer: Answer, room: npt.NDArray[np.uint8]) -> Any:
    """The result of an Answer. Its large arrays are copies: `room` is used again once the frame is settled."""
    arrays, begin = [], 0
    for size in answer.large:
        arrays.append(room[begin : begin + size].copy())
        begin += size
    return pickle.loads(answer.output, buffers=arrays)  # noqa: S301  (from a process of ours)
