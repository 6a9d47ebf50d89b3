"""The interface to an engine, in the node's process or in separate ones, and the data exchanged over it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.planning.fit import Fit
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.settings.schema import NodeConfig

#: (config, progress) -> Pipeline: makes the pipeline in the engine's process. By default
#: :func:`multi_dnn_ros.serving.default_build.build`. Must be picklable: a module-level function.
Build = Callable[[NodeConfig, Callable[[str], None]], Any]


class ConfigureError(Exception):
    """An engine cannot be configured. text: the problems, one line each. expected: they are problems of parameters or
    files; otherwise `text` is a traceback.
    """

    def __init__(self, text: str, *, expected: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.expected = expected


class Cancelled(Exception):
    """Configuring was cancelled by :meth:`Host.cancel` or :meth:`Host.close`."""


@dataclass(frozen=True)
class Progress:
    """Progress of configuring. text: the latest step, one line. ready, total: numbers of DNNs; a DNN with several
    devices counts once for each device. left_s: estimated seconds to the end; None: unknown. dnn: the DNN that is being
    prepared, or has just become ready; empty: none.
    """

    text: str
    ready: int = 0
    total: int = 0
    left_s: float | None = None
    dnn: str = ""


@dataclass(frozen=True)
class ResultDescription:
    """labels: class names by index. own_threshold: score threshold of the decoder, used if the parameter
    score_threshold is 0. result_kind: name of the kind.
    """

    labels: tuple[str, ...]
    own_threshold: float
    result_kind: str


@dataclass(frozen=True)
class DnnDescription:
    """cameras: cameras whose frames the DNN processes. results: by name of the output, see parameter `outputs`; without
    that parameter, the key is "".
    """

    cameras: tuple[str, ...]
    results: Mapping[str, ResultDescription]


@dataclass(frozen=True)
class EngineDescription:
    """Properties of the configured engine, for the node's process.

    device: its name (`cpu`, `cuda:0`), or several names. device_name: name of the processor. workers: number of threads
    that run jobs. dnns: by name. fits: by device, whether its DNNs fit, as measured; empty: not measured. versions:
    versions of torch and CUDA, by name. service_ms: for each DNN with several devices, measured milliseconds per frame
    on `device`; empty if `device` is several names. decodes_jpeg: whether the engine decodes JPEG files on its device.
    """

    device: str
    device_name: str
    workers: int
    dnns: Mapping[str, DnnDescription]
    fits: Mapping[str, Fit] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    service_ms: Mapping[str, float] = field(default_factory=dict)
    decodes_jpeg: bool = False


class Level(IntEnum):
    """Levels as in diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2


@dataclass(frozen=True)
class EngineStatus:
    """A diagnostic status of an engine. name: name of the status (`engine cuda:0`). values: by name with the unit."""

    name: str
    level: Level
    text: str
    values: Mapping[str, object] = field(default_factory=dict)


#: By DNN, new values of its parameters, by name without `dnn.<dnn>.`.
Changes = Mapping[str, Mapping[str, Any]]


class SwapPhase(Enum):
    """State of a swap that was neither committed nor cancelled."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    FAILED = "failed"


@dataclass(frozen=True)
class SwapState:
    """failure: why the swap has failed. progress: progress of the preparation; None: unknown. dnns: once prepared, the
    descriptions of the DNNs with the new settings.
    """

    phase: SwapPhase
    failure: str = ""
    progress: Progress | None = None
    dnns: Mapping[str, DnnDescription] = field(default_factory=dict)


class Swap(Protocol):
    """A change of the settings of DNNs while they are served (docs/isolation.md)."""

    @property
    def gaps_ms(self) -> Mapping[str, float]:
        """After the commit, by DNN: time between its last result with the previous settings and the first one with the
        new ones.
        """
        ...

    def state(self) -> SwapState:
        """The current state; meaningless after :meth:`commit` or :meth:`cancel`."""
        ...

    def commit(self) -> bool:
        """Let the new settings take over between two frames. False: they are not, or no longer, prepared."""
        ...

    def cancel(self, cause: str) -> None:
        """End the preparation; no effect after the commit, or on a later swap."""
        ...


class Buffer(Protocol):
    """Memory for an image or a JPEG file. Not reused before all its users have released it."""

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """View of the memory for the image, (H, W, 3) uint8, C-contiguous. Raises ValueError if it is too large."""
        ...

    def file(self, size: int) -> npt.NDArray[np.uint8] | None:
        """View of the same memory for a file of `size` bytes, (bytes,) uint8; None if the file is too large."""
        ...

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """Space for large results of a DNN, (bytes,) uint8; may be empty."""
        ...

    def reserve_output(self, dnn: str, size: int) -> None:
        """A DNN had large results of this many bytes: reserve memory for them in the other buffers of the camera."""
        ...

    def hold(self) -> None:
        """Add a user."""
        ...

    def release(self) -> None:
        """Remove a user; after the last one the memory is reused."""
        ...


class Host(Protocol):
    """An engine in this process or in others. Order of calls: configure, start, (offer, update)*, stop, start, ...,
    close.

    Methods may be called from any thread. At most one of configure, start, stop and close may run at a time, except
    that cancel and close may be called while configure is running.
    """

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> EngineDescription:
        """Load, cut and warm up the DNNs; blocks. Raises ConfigureError or Cancelled, after freeing everything."""
        ...

    def cancel(self) -> None:
        """Make a running configure raise Cancelled within a second; no effect otherwise."""
        ...

    def start(self, accounts: Accounts) -> None:
        """Serve frames. For each offered frame, each of its DNNs reports one result or drop to `accounts`."""
        ...

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        """Memory for the next image of a camera, held by the caller; None on timeout."""
        ...

    def offer(self, number: int, frame: Frame, buffer: Buffer, dnns: Collection[str]) -> None:
        """Hand a frame to those DNNs that have an engine, and drop it for the others. Blocks only while an
        engine process receives nothing, for at most a second per process.

        number: number of the frame in the accounts. buffer: contains the image or its JPEG file; the accounts release
        it. dnns: DNNs of its camera.
        """
        ...

    def has_engine_for(self, camera: str) -> bool:
        """Whether at least one DNN of the camera has an engine now."""
        ...

    def decodes_jpeg(self, camera: str, dnns: Collection[str]) -> bool:
        """Whether every engine that serves one of the DNNs for the camera now decodes JPEG files on its device. Other
        engines decode them on the CPU, each for itself.
        """
        ...

    def update(self, dnn: str, name: str, value: Any) -> None:
        """A runtime parameter of a DNN has changed. name: without `dnn.<dnn>.`."""
        ...

    def swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        """Begin to change the settings of DNNs, which continue to serve.

        A swap in progress on any device of these DNNs is cancelled.

        notify: called in any thread when the state of the swap may have changed; must not block or use the swap.
        Raises ConfigureError if the host cannot do that.
        """
        ...

    def statuses(self) -> list[EngineStatus]:
        """The statuses of the engine for diagnostics."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Memory in use, by name with the unit."""
        ...

    def supervision_age_s(self) -> float:
        """Time since the supervision of the engine processes last ran; 0.0 if there are none. Takes no lock."""
        ...

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that are waiting or in progress; drop those left after the timeout.

        Returns the names of threads that hang.
        """
        ...

    def close(self) -> None:
        """Stop, and free everything, within 2 s."""
        ...
