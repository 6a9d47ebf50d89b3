"""What the node's process tells engines and is told about them: builds, descriptions, statuses and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from multi_dnn_ros.backends.host import has_gpu_driver
from multi_dnn_ros.planning.fit import Fit, Verdict
from multi_dnn_ros.settings.schema import NodeConfig

#: (config, progress) -> Pipeline: makes the pipeline in the engine's process; see :func:`build_pipeline`. Must be
#: picklable: a module-level function.
Build = Callable[[NodeConfig, Callable[[str], None]], Any]
#: By DNN, new values of its parameters, by name without `dnn.<dnn>.`.
Changes = Mapping[str, Mapping[str, Any]]


def build_pipeline(config: NodeConfig, progress: Callable[[str], None]) -> Any:
    """The Pipeline of :func:`multi_dnn_ros.serving.build.build`; importing this module does not import PyTorch."""
    from multi_dnn_ros.serving.build import build

    return build(config, progress)


def modules_of(build: Build) -> tuple[str, ...]:
    """What an engine process imports before it builds, which takes seconds; after a colon, a function to call.

    For a build of others its module, or its attribute `modules` if it wraps another build.
    """
    if build is not build_pipeline:
        return tuple(getattr(build, "modules", (build.__module__,)))
    torch = ("multi_dnn_ros.serving.torch_task", "multi_dnn_ros.models.trace:import_export")
    modules = ("multi_dnn_ros.serving.build", "multi_dnn_ros.serving.settings_check:import_registries")
    return modules + (torch if has_gpu_driver() else ())


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
    versions of torch and CUDA, by name.
    """

    device: str
    device_name: str
    workers: int
    dnns: Mapping[str, DnnDescription]
    fits: Mapping[str, Fit] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Capacity:
    """Whether the DNNs fit their devices at the cameras' rates.

    text: the verdict for the log. advice: lines for the log. values: for diagnostics, by name with the unit.
    """

    fits: bool
    text: str
    advice: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


def capacity_of_devices(fits: Mapping[str, Fit]) -> Capacity | None:
    """One verdict for all devices, with their names if there are several. fits: by device; None: nothing measured."""
    parts = {device: capacity_of(fit.verdict()) for device, fit in fits.items()}
    if len(parts) < 2:
        return next(iter(parts.values()), None)
    return Capacity(
        all(part.fits for part in parts.values()),
        "; ".join(f"{device}: {part.text}" for device, part in parts.items()),
        tuple(f"{device}: {text}" for device, part in parts.items() for text in part.advice),
        {f"{device}: {name}": it for device, part in parts.items() for name, it in part.values.items()},
    )


def capacity_of(verdict: Verdict) -> Capacity:
    """The verdict as text and diagnostic values."""
    values: dict[str, str] = {"utilization (%)": f"{100 * verdict.utilization:.1f}"}
    values.update({f"{dnn} needs (% of its time)": f"{100 * need:.1f}" for dnn, need in verdict.needs.items()})
    values.update({f"{dnn} at most (Hz)": f"{hz:.2f}" for dnn, hz in verdict.most_hz.items()})
    values.update({f"advice {number}": text for number, text in enumerate(verdict.advice, start=1)})
    return Capacity(verdict.fits, verdict.text, tuple(verdict.advice), values)


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
