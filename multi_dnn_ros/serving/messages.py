"""The messages between the node's process and an engine, and the channel that carries them.

To an engine: Begin, Configure, Offer, Update. From an engine: Ready, Progress, EngineDescription (it is configured),
Refused, FrameResult, FrameDropped, Failure, log records, Aborting; at last the node's side of it adds Ended. Images and
large results are passed in shared memory (:mod:`multi_dnn_ros.serving.shared_memory`).

Named tuples, because unpickling them takes two thirds of the time of a dataclass.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.descriptions import Build
from multi_dnn_ros.serving.shared_memory import SlotLayout
from multi_dnn_ros.settings.schema import NodeConfig

# -- to an engine


class Begin(NamedTuple):
    """The first message to an engine process. dnns: columns of its state, which is in the memory with the descriptor
    `state`. pools: layout of each camera's slots and the descriptor of their memory. modules: what the process imports
    before it is ready. log_level: minimum level of the log records that it sends.
    """

    dnns: tuple[str, ...]
    state: int
    pools: tuple[tuple[SlotLayout, int], ...]
    modules: tuple[str, ...]
    log_level: int


class Configure(NamedTuple):
    """Configure the DNNs `dnns` of `config` and serve; answered by Progress, then EngineDescription or Refused.

    in_background: at low CPU priority and without measuring the capacity, because other engines are serving.
    """

    config: NodeConfig
    dnns: tuple[str, ...]
    build: Build
    in_background: bool = False


class Offer(NamedTuple):
    """A frame in a slot of its camera, of `height` x `width` pixels; each of `dnns` answers once, by FrameResult or
    FrameDropped.

    Times are nanoseconds on the monotonic clock, except stamp_ns, which is the header's.
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


class Update(NamedTuple):
    """Runtime parameters of a DNN have new values; by name without `dnn.<dnn>.`."""

    dnn: str
    values: Mapping[str, Any]


# -- from an engine


class Ready(NamedTuple):
    """Its imports are done."""


class Progress(NamedTuple):
    """The latest step of configuring. text: one line."""

    text: str


class Refused(NamedTuple):
    """Configuring failed. expected: because of parameters or files; otherwise `text` is a traceback."""

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


class Aborting(NamedTuple):
    """The engine cannot continue (a CUDA fault, an internal error). cause: a phrase for messages."""

    cause: str


class Ended(NamedTuple):
    """The last message: the engine has ended. cause: a phrase for messages."""

    cause: str


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


class Disconnected(Exception):
    """The other end of a channel is closed."""


class Channel:
    """One end of a socket pair between the node and an engine; any thread may send, one receives.

    send_timeout_s: of :meth:`send`; 0: none.
    """

    def __init__(self, connected: socket.socket, send_timeout_s: float = 0.0) -> None:
        seconds, microseconds = divmod(round(send_timeout_s * 1e6), 1_000_000)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, microseconds))
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Raises Disconnected, BlockingIOError after the timeout, and what pickling raises."""
        data = pickle.dumps(message, protocol=5)
        try:
            with self._lock:
                self._connection.send_bytes(data)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Disconnected from error

    def receive(self) -> Any:
        """Wait for the next message. Raises Disconnected, and what unpickling raises."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise Disconnected from error
        return pickle.loads(data)  # noqa: S301  (sent by our own process)

    def shutdown(self) -> None:
        """Disconnect both ends; what was sent before is still received."""
        with suppress(OSError):  # the other end has done so
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect and free the descriptors; no thread may be receiving."""
        self._connection.close()
        self._socket.close()
