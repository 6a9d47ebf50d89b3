"""The messages between the node's process and an engine process, and their transport over a socket pair.

Messages are pickled dataclasses: both ends run the same version of this package. Images and large results are passed in
shared memory (:mod:`multi_dnn_ros.serving.slots`) instead.
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

#: Arrays of a result of at least this size are passed in shared memory.
LARGE_BYTES = 16_384
_BUFFER_BYTES = 65_536
_LENGTH = struct.Struct("=I")


# -- node to engine process


@dataclass(frozen=True)
class Check:
    """Check the settings; answered by Checked."""

    config: NodeConfig


@dataclass(frozen=True)
class Configure:
    """Configure the DNNs `dnns` of `config`; answered by Progressed, then Configured or Refused.

    in_background: at low CPU priority, because another engine process is serving. judge: measure the capacity.
    """

    config: NodeConfig
    dnns: tuple[str, ...]
    build: Build
    in_background: bool = False
    judge: bool = True


@dataclass(frozen=True)
class Start:
    """Begin to serve; answered by Started. runtime: by DNN, its runtime parameters by name."""

    runtime: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Offer:
    """A frame in a slot of its camera, of `height` x `width` pixels.

    Times are nanoseconds on the monotonic clock, except stamp_ns, which is the header's.
    dnns: those that process the frame; each answers once, by FrameResult or FrameDropped. A process may be configured
    for more DNNs, which another process serves.
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
    """Finish the frames that are waiting or in progress; answered by Stopped."""

    timeout_s: float


@dataclass(frozen=True)
class Quit:
    """End the process."""


# -- engine process to node


@dataclass(frozen=True)
class Ready:
    """Imports are done; the process accepts Check and Configure. versions: of libraries, by name."""

    versions: Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    """problems: one line each."""

    problems: tuple[str, ...]


@dataclass(frozen=True)
class Progressed:
    """Configuring has made progress."""

    progress: Progress


@dataclass(frozen=True)
class Configured:
    """Configuring is complete."""

    description: Description


@dataclass(frozen=True)
class Refused:
    """Configuring failed. expected: because of parameters or files; otherwise `text` is a traceback."""

    text: str
    expected: bool


@dataclass(frozen=True)
class Started:
    """The process serves."""


@dataclass(frozen=True)
class FrameResult:
    """A DNN's result for a frame. output: pickled. large: bytes of each array that is in the slot, in their order."""

    number: int
    dnn: str
    timing: Timing
    output: bytes
    large: tuple[int, ...]


@dataclass(frozen=True)
class FrameDropped:
    """A DNN dropped a frame."""

    number: int
    dnn: str
    reason: DropReason
    message: str


@dataclass(frozen=True)
class Failed:
    """A DNN lost frames by an error of its own."""

    failure: Failure


@dataclass(frozen=True)
class Logged:
    """A log record. level: as in :mod:`logging`."""

    level: int
    name: str
    text: str


@dataclass(frozen=True)
class Report:
    """Sent about once a second. memory: bytes, by name. ended_threads: names of threads that ended by an error."""

    memory: Mapping[str, int]
    ended_threads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """The process serves no more. hanging: names of threads that did not end in time."""

    hanging: tuple[str, ...]


@dataclass(frozen=True)
class Dying:
    """The process cannot continue (a CUDA fault, an internal error) and ends itself. cause: a phrase for messages."""

    cause: str


class Channel:
    """One end of the socket pair. Any thread may send; one thread receives.

    A message is its length (4 bytes) and its pickle. One system call receives all messages that have arrived.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._begin = self._end = 0  # of the received bytes that were not taken yet

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


def pack(output: Any, space: npt.NDArray[np.uint8]) -> tuple[bytes, tuple[int, ...]]:
    """`output` and `large` of a FrameResult.

    Arrays of at least LARGE_BYTES are copied into `space`, (bytes,) uint8, if they fit; otherwise they are pickled.
    """
    sizes: list[int] = []
    used = 0

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        """Whether pickle has to write the array itself."""
        nonlocal used
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES or used + raw.nbytes > len(space):
            return True
        space[used : used + raw.nbytes] = np.frombuffer(raw, dtype=np.uint8)
        sizes.append(raw.nbytes)
        used += raw.nbytes
        return False

    return pickle.dumps(output, protocol=5, buffer_callback=keep_in_band), tuple(sizes)


def unpack(result: FrameResult, space: npt.NDArray[np.uint8]) -> Any:
    """The output of a FrameResult. Its large arrays are copied from `space`, which is reused for later frames."""
    arrays, begin = [], 0
    for size in result.large:
        arrays.append(space[begin : begin + size].copy())
        begin += size
    return pickle.loads(result.output, buffers=arrays)  # noqa: S301  (sent by our own process)
