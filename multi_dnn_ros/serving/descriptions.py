"""What the node's process is told about its engines: descriptions, progress, statuses and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from multi_dnn_ros.planning.fit import Fit
from multi_dnn_ros.settings.schema import NodeConfig

#: (config, progress) -> Pipeline: makes the pipeline in the engine's process. By default
#: :func:`multi_dnn_ros.serving.default_build.build`. Must be picklable: a module-level function.
Build = Callable[[NodeConfig, Callable[[str], None]], Any]
#: By DNN, new values of its parameters, by name without `dnn.<dnn>.`.
Changes = Mapping[str, Mapping[str, Any]]


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
    """Progress of configuring. text: the latest step, one line. ready, total: numbers of DNNs. left_s: estimated
    seconds to the end; None: unknown.
    """

    text: str
    ready: int = 0
    total: int = 0
    left_s: float | None = None


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
    """Properties of a configured engine, or of the engines of all devices.

    device: its name (`cpu`, `cuda:0`), or several names. device_name: name of the processor. workers: number of threads
    that run jobs. dnns: by name. fits: by device, whether its DNNs fit, as measured; empty: not measured. versions:
    versions of torch and CUDA, by name. decodes_jpeg: whether the engine decodes JPEG files on its device.
    """

    device: str
    device_name: str
    workers: int
    dnns: Mapping[str, DnnDescription]
    fits: Mapping[str, Fit] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
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
