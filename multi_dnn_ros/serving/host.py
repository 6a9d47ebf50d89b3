"""The one interface to an engine: in the node's process or in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.planning.image_sizes import Fit
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.settings.schema import NodeConfig

#: Makes the pipeline in the process of the engine: :func:`multi_dnn_ros.pipeline.build.build`, or another that pickle
#: can name. (config, progress) -> Pipeline.
Build = Callable[[NodeConfig, Callable[[str], None]], Any]


class ConfigureError(Exception):
    """An engine cannot be configured. text: what is wrong, a line each. expected: a mistake in parameters or files,
    told in words; else `text` is a traceback."""

    def __init__(self, text: str, *, expected: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.expected = expected


class Cancelled(Exception):
    """Configuring was given up because :meth:`Host.cancel` or :meth:`Host.close` asked for it."""


@dataclass(frozen=True)
class Progress:
    """How far configuring is. text: the newest step, a line. ready, total: DNNs. left_s: estimate; None: not known."""

    text: str
    ready: int = 0
    total: int = 0
    left_s: float | None = None


@dataclass(frozen=True)
class DnnDescription:
    """cameras: whose frames it takes. labels: class names by index. own_threshold: for score_threshold 0.

    result_kind: name of the kind of its results.
    """

    cameras: tuple[str, ...]
    labels: tuple[str, ...]
    own_threshold: float
    result_kind: str


@dataclass(frozen=True)
class Description:
    """What configuring made, as far as others need to know.

    device: as torch names it (`cpu`, `cuda:0`). device_name: the processor's own. dnns: by name. fit: whether the DNNs
    fit the device, measured; None: not asked for. versions: of torch and CUDA, by name.
    """

    device: str
    device_name: str
    workers: int
    dnns: Mapping[str, DnnDescription]
    fit: Fit | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


class Level(IntEnum):
    """As in diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class EngineStatus:
    """How one part of a host is, for diagnostics. name: of the status (`engine cuda:0`)."""

    name: str
    level: Level
    text: str
    values: Mapping[str, object] = field(default_factory=dict)


class Buffer(Protocol):
    """Memory that one image is decoded into, and that then belongs to the frame."""

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Where the image goes, (H, W, 3) uint8, C-contiguous."""
        ...

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """Room for large results of a DNN, (bytes,) uint8; empty: none."""
        ...

    def hold(self) -> None:
        """One more user."""
        ...

    def release(self) -> None:
        """One user less; after the last one the memory is used again."""
        ...


class Host(Protocol):
    """An engine, near or far. Used so: configure, start, (offer, update)*, stop, start, ..., close.

    Methods may be called from any thread, one of configure, start, stop and close at a time; cancel and close also
    while configure runs.
    """

    def check(self, config: NodeConfig) -> Sequence[str]:
        """What is wrong with the settings beyond single values, a line each (files, names, combinations)."""
        ...

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> Description:
        """Load, cut and warm up the DNNs; blocks. Raises ConfigureError, Cancelled; then nothing is left behind."""
        ...

    def cancel(self) -> None:
        """Let a configure that runs raise Cancelled within a second; without effect otherwise."""
        ...

    def start(self, accounts: Accounts) -> None:
        """Serve frames. Every frame that is offered ends in `accounts` as a result or a drop."""
        ...

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        """Memory for the next image of a camera, held once by the caller; None: none gets free in time."""
        ...

    def offer(self, number: int, frame: Frame, buffer: Buffer) -> None:
        """Hand a decoded frame to every DNN of its camera that has an engine; never blocks.

        number: by which the accounts know it. buffer: with its image; the accounts release it.
        """
        ...

    def serves(self, camera: str) -> bool:
        """Whether some DNN of the camera has an engine at this moment."""
        ...

    def update(self, dnn: str, name: str, value: Any) -> None:
        """A runtime parameter of a DNN (the part of its name behind `dnn.<dnn>.`) has changed."""
        ...

    def statuses(self) -> list[EngineStatus]:
        """How its parts are."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Memory that it takes, bytes, by name (with the unit)."""
        ...

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that wait and are under way, in time or not at all; names threads that hang."""
        ...

    def close(self) -> None:
        """End and free everything. Bounded: 2 s."""
        ...
