"""The messages between the node's process and an engine, and the channel that carries them between processes.

Images and large results are passed in shared memory instead (:mod:`multi_dnn_ros.serving.slots`). The messages that are
sent for each frame are named tuples: they are unpickled in two thirds of the time of a dataclass.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.descriptions import Build, EngineDescription, Progress
from multi_dnn_ros.serving.slots import SlotLayout
from multi_dnn_ros.settings.schema import NodeConfig

#: Exit codes of an engine process that ends itself; see also multi_dnn_ros.common.processes.
EXIT_ERROR = 70  # an error in its own code
EXIT_DEVICE_FAILED = 71  # a fault of the GPU

# -- to an engine


@dataclass(frozen=True)
class Begin:
    """The first message to an engine process.

    dnns: columns of its state. state: file descriptor of the memory for it. pools: layout of the slots of each camera,
    and the descriptor of their memory. modules: what the process imports before it is ready. log_level: minimum level
    of the log records that it sends, as in :mod:`logging`.
    """

    dnns: tuple[str, ...]
    state: int
    pools: tuple[tuple[SlotLayout, int], ...]
    modules: tuple[str, ...] = ()
    log_level: int = 30


@dataclass(frozen=True)
class FindDevices:
    """Find the device of every DNN of `config`; answered by Progressed, then DevicesFound or Refused."""

    config: NodeConfig
    build: Build


@dataclass(frozen=True)
class Configure:
    """Configure the DNNs `dnns` of `config`; answered by Progressed, then Configured or Refused.

    in_background: at low CPU priority and without measuring the capacity, because other engines are serving.
    """

    config: NodeConfig
    dnns: tuple[str, ...]
    build: Build
    in_background: bool = False


@dataclass(frozen=True)
class Start:
    """Begin to serve. runtime: by DNN, its runtime parameters by name."""

    runtime: Mapping[str, Mapping[str, Any]]


class Offer(NamedTuple):
    """A frame in a slot of its camera, of `height` x `width` pixels; each of `dnns` answers once, by FrameResult or
    FrameDropped.

    jpeg_bytes: size of the JPEG file in the slot; 0: the slot has the pixels. Times are nanoseconds on the monotonic
    clock, except stamp_ns, which is the header's.
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
    jpeg_bytes: int = 0


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


# -- from an engine


@dataclass(frozen=True)
class Ready:
    """Imports are done; the engine accepts FindDevices and Configure."""


@dataclass(frozen=True)
class DevicesFound:
    """devices: names by DNN."""

    devices: Mapping[str, str]


@dataclass(frozen=True)
class Progressed:
    """FindDevices or Configure has made progress."""

    progress: Progress


@dataclass(frozen=True)
class Configured:
    """Configuring is complete."""

    description: EngineDescription


@dataclass(frozen=True)
class Refused:
    """FindDevices or Configure failed. expected: because of parameters or files; otherwise `text` is a traceback."""

    text: str
    expected: bool


class FrameResult(NamedTuple):
    """A DNN's result for a frame. output: pickled. large: size in bytes of each array that is in the slot, in order."""

    number: int
    dnn: str
    timing: Timing
    output: bytes
    large: tuple[int, ...]


class FrameDropped(NamedTuple):
    """A DNN dropped a frame."""

    number: int
    dnn: str
    reason: DropReason
    message: str


@dataclass(frozen=True)
class Failed:
    """A DNN lost frames because of its own error."""

    failure: Failure


@dataclass(frozen=True)
class Logged:
    """A log record. level: as in :mod:`logging`."""

    level: int
    name: str
    text: str


@dataclass(frozen=True)
class Report:
    """Sent about once a second. memory: bytes, by name. ended_threads: names of threads that ended with an error."""

    memory: Mapping[str, int]
    ended_threads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """The engine no longer serves. hanging: names of threads that did not end in time."""

    hanging: tuple[str, ...]


@dataclass(frozen=True)
class Aborting:
    """The engine cannot continue (a CUDA fault, an internal error) and ends itself. cause: a phrase for messages."""

    cause: str


@dataclass(frozen=True)
class Ended:
    """The last message: the engine has ended. cause: a phrase for messages. output_tail: the last lines that its
    process wrote to stdout and stderr.
    """

    cause: str
    output_tail: str = ""


# -- results in shared memory

#: Arrays of at least this size are passed in the slot of the frame.
LARGE_BYTES = 16_384


def pack(output: Any, space: npt.NDArray[np.uint8]) -> tuple[bytes, tuple[int, ...]]:
    """Return `output` and `large` of a FrameResult.

    Arrays of at least LARGE_BYTES are copied into `space`, (bytes,) uint8, if they fit; otherwise they are pickled.
    """
    sizes: list[int] = []
    used = 0

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        """Whether pickle has to write the array into its own data."""
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


# -- transport

_BUFFER_BYTES = 65_536
_LENGTH = struct.Struct("=I")


class Channel:
    """One end of a socket pair between two processes with the same version of this package.

    Any thread may send; one thread receives. A message is its length (4 bytes) and its pickle. One system call receives
    all messages that have arrived.
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
