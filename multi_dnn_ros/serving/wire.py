"""The messages between the node's process and an engine process.

They are sent over a :class:`multi_dnn_ros.serving.channel.Channel`. Images and large results are passed in shared
memory instead (:mod:`multi_dnn_ros.serving.slots`). The messages that are sent for each frame are named tuples: they
are unpickled in two thirds of the time of a dataclass, and have half its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.host import Build, EngineDescription, Progress
from multi_dnn_ros.settings.schema import NodeConfig

# -- node to engine process


@dataclass(frozen=True)
class Configure:
    """Configure the DNNs `dnns` of `config`; answered by Progressed, then Configured or Refused.

    in_background: at low CPU priority, because another engine process is serving. timed: DNNs whose time per frame is
    measured.
    """

    config: NodeConfig
    dnns: tuple[str, ...]
    build: Build
    in_background: bool = False
    measure_capacity: bool = True
    timed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Find the devices of every DNN of `config`; answered by Progressed, then Placed or Refused."""

    config: NodeConfig
    build: Build


@dataclass(frozen=True)
class Start:
    """Begin to serve; answered by Started. runtime: by DNN, its runtime parameters by name."""

    runtime: Mapping[str, Mapping[str, Any]]


class Offer(NamedTuple):
    """A frame in a slot of its camera, of `height` x `width` pixels.

    jpeg_bytes: size of the JPEG file in the slot; 0: the slot has the pixels.

    Times are nanoseconds on the monotonic clock, except stamp_ns, which is the header's.
    dnns: DNNs that process the frame; each answers once, by FrameResult or FrameDropped. A process may be configured
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


# -- engine process to node


@dataclass(frozen=True)
class Ready:
    """Imports are done; the process accepts Place and Configure."""


@dataclass(frozen=True)
class Placed:
    """The answer to Place. devices: names by DNN."""

    devices: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Progressed:
    """Place or Configure has made progress."""

    progress: Progress


@dataclass(frozen=True)
class Configured:
    """Configuring is complete."""

    description: EngineDescription


@dataclass(frozen=True)
class Refused:
    """Place or Configure failed. expected: because of parameters or files; otherwise `text` is a traceback."""

    text: str
    expected: bool


@dataclass(frozen=True)
class Started:
    """The process serves. The node does not wait for it; tests do."""


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
    """The process no longer serves. hanging: names of threads that did not end in time."""

    hanging: tuple[str, ...]


@dataclass(frozen=True)
class Aborting:
    """The process cannot continue (a CUDA fault, an internal error) and ends itself. cause: a phrase for messages."""

    cause: str


#: Messages to an engine process, all handled by EngineMain, and to the node's process.
ToEngine = Configure | Place | Start | Offer | Update | Stop
ToNode = (
    Ready
    | Placed
    | Progressed
    | Configured
    | Refused
    | Started
    | FrameResult
    | FrameDropped
    | Failed
    | Logged
    | Report
    | Stopped
    | Aborting
)


def unhandled(message: NoReturn) -> NoReturn:
    """Raise TypeError: the end of a chain of isinstance checks. mypy refuses the call if a message can reach it."""
    raise TypeError(f"message {type(message).__name__} is not handled")
