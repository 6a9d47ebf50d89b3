"""Units that run parts of a batch. A unit is a device with a backend; on a GPU it may be a share of the SMs.

A unit has a name: ``cpu``, ``cpu:8`` (threads), ``cuda:0``, ``cuda:0/16sms``, ``cpu:1/torchscript`` (backend),
``openvino:gpu``. The part before the first ``:`` or ``/`` is its kind. Another package adds a kind with an entry point
in the group ``multi_dnn_ros.units``, whose value is ``module:attribute`` of a :class:`UnitKind`. This module does not
import PyTorch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.error_text import summarize_error

log = logging.getLogger(__name__)

GROUP = "multi_dnn_ros.units"


class UnitError(ValueError):
    """A unit is invalid; the message names the unit and what is allowed."""


@dataclass(frozen=True)
class Unit:
    """One unit.

    name: normalized, so that equal units have equal names. process: units with the same value run as threads of one
    process, because kernels of two processes do not run on a GPU at the same time. executor: ``module:class`` that runs
    networks on the unit, see :class:`multi_dnn_ros.partition.executor.Executor`. device: PyTorch's name. threads: per
    CPU operation; 0: one per core. sms: number of SMs of a GPU; 0: all. options: further ones of the kind of unit.
    """

    name: str
    process: str
    executor: str
    device: str = ""
    threads: int = 0
    sms: int = 0
    backend: str = "auto"
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class UnitKind:
    """A kind of unit. form: syntax of unit names, for messages. parse: makes a unit from its name; raises UnitError."""

    name: str
    form: str
    parse: Callable[[str], Unit]

    def unit(self, text: str) -> Unit:
        """The unit with this name. Raises UnitError, which names it, also for whatever else `parse` raises."""
        failed = f"unit '{text}': `parse` of kind of unit '{self.name}'"
        try:
            unit: object = self.parse(text)
        except UnitError:
            raise
        except Exception as error:  # whatever a kind of another package raises
            raise UnitError(f"{failed} raised {type(error).__name__}: {summarize_error(error)}") from error
        if not isinstance(unit, Unit):
            raise UnitError(f"{failed} returned {type(unit).__name__}; expected Unit")
        return unit


_TORCH = "multi_dnn_ros.partition.torch_executor:TorchExecutor"


def _parse_cpu(text: str) -> Unit:
    match = re.fullmatch(r"cpu(?::([1-9][0-9]{0,3}))?(?:/([a-z][a-z0-9_]*))?", text)
    if match is None:
        raise UnitError(f"unit '{text}' is invalid; allowed: {CPU.form}")
    name = "cpu" + (f":{match[1]}" if match[1] else "") + (f"/{match[2]}" if match[2] else "")
    return Unit(name, name, _TORCH, "cpu", threads=int(match[1] or 0), backend=match[2] or "auto")


def _parse_cuda(text: str) -> Unit:
    match = re.fullmatch(r"cuda(?::([0-9]{1,3}))?(?:/([1-9][0-9]{0,3})sms)?(?:/(?!sms$)([a-z][a-z0-9_]*))?", text)
    if match is None:
        raise UnitError(f"unit '{text}' is invalid; allowed: {CUDA.form}")
    device = f"cuda:{int(match[1] or 0)}"
    name = device + (f"/{match[2]}sms" if match[2] else "") + (f"/{match[3]}" if match[3] else "")
    return Unit(name, device, _TORCH, device, sms=int(match[2] or 0), backend=match[3] or "auto")


def _parse_openvino(text: str) -> Unit:
    """A processor used through OpenVINO, such as an integrated GPU; images and outputs are in host memory."""
    match = re.fullmatch(r"openvino:((?:cpu|gpu|npu)(?:\.[0-9]{1,2})?)", text)
    if match is None:
        raise UnitError(f"unit '{text}' is invalid; allowed: {OPENVINO.form}")
    threads = 0 if text.startswith("openvino:cpu") else 1  # host threads
    return Unit(text, text, _TORCH, "cpu", threads, backend="onnxruntime", options=(("providers", (text,)),))


def check_installation(unit: Unit) -> None:
    """Raise UnitError if a library that the unit needs is not installed.

    Parsing does not check this, because tables may come from another machine.
    """
    if unit.name.startswith("openvino:") and (problem := _missing_openvino()):
        raise UnitError(f"unit '{unit.name}' cannot be used: {problem}")


def _missing_openvino() -> str:
    try:
        import onnxruntime
    except ImportError as error:
        return f"ONNX Runtime cannot be imported: {error}"
    if "OpenVINOExecutionProvider" in onnxruntime.get_available_providers():
        return ""
    return (
        f"onnxruntime {onnxruntime.__version__} was built without OpenVINO; install onnxruntime-openvino in its place "
        "(docs/providers.md)"
    )


CPU = UnitKind("cpu", "cpu[:THREADS][/BACKEND]", _parse_cpu)
CUDA = UnitKind("cuda", "cuda[:NUMBER][/NUMBERsms][/BACKEND]", _parse_cuda)
OPENVINO = UnitKind("openvino", "openvino:cpu|gpu|npu[.NUMBER]", _parse_openvino)
_registered: dict[str, UnitKind] = {kind.name: kind for kind in (CPU, CUDA, OPENVINO)}
_reported: set[str] = set()


def register(kind: UnitKind) -> None:
    """Add a kind of unit in this process. Raises ValueError if the name is registered already."""
    if _registered.setdefault(kind.name, kind) is not kind:
        raise ValueError(f"a kind of unit '{kind.name}' is registered already")


def unit_kinds() -> dict[str, UnitKind]:
    """All kinds by name that can be used: those registered in this process, then those of installed packages.

    Logs a warning, once per process, for each entry point that cannot be used, with its distribution and the problem.
    """
    kinds = dict(_registered)
    points, problems = _entry_points()
    for name, (package, point) in points.items():
        try:
            kinds[name] = _load(package, point)
        except UnitError as error:
            problems.append(str(error))
    for problem in problems:
        if problem not in _reported:
            _reported.add(problem)
            log.warning("%s", problem)
    return kinds


def _entry_points() -> tuple[dict[str, tuple[str, EntryPoint]], list[str]]:
    """Distribution and entry point of each kind by name, and a line for each entry point that is not used.

    Of several with one name the first is used, and one that is registered in this process before them.
    """
    found: dict[str, tuple[str, EntryPoint]] = {}
    problems = []
    points = [(f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package", point)
              for point in entry_points(group=GROUP)]  # fmt: skip
    for package, point in sorted(points, key=lambda pair: (pair[1].name, pair[0])):
        taken = found.get(point.name, ("",))[0]
        if (registered := _registered.get(point.name)) is not None:
            taken = registered.parse.__module__.partition(".")[0]
        if taken:
            problems.append(f"kind of unit '{point.name}' of {package} is not used: {taken} has one of this name")
        else:
            found[point.name] = package, point
    return found, problems


def _load(package: str, point: EntryPoint) -> UnitKind:
    unusable = f"kind of unit '{point.name}' of {package} cannot be used: {point.value}"
    try:
        kind = extensions.load(point.value)
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        raise UnitError(f"{unusable}: {type(error).__name__}: {summarize_error(error)}") from error
    if not isinstance(kind, UnitKind) or kind.name != point.name:
        raise UnitError(f"{unusable} is not a UnitKind of this name")
    return kind


def parse_unit(text: str) -> Unit:
    """The unit with this name. Raises UnitError for an unknown kind or a syntax error."""
    name = re.split(r"[:/]", text, maxsplit=1)[0]
    # Kinds of other packages are imported only if they are needed: the node's process, which must stay free of PyTorch,
    # parses names of devices.
    kind = _registered.get(name)
    if kind is None:
        point = _entry_points()[0].get(name)
        if point is None:
            forms = ", ".join(known.form for known in unit_kinds().values())
            raise UnitError(f"unit '{text}' is of an unknown kind; allowed: {forms}")
        kind = _load(*point)
    return kind.unit(text)


def parse_units(text: str) -> tuple[Unit, ...]:
    """Units separated by commas, in order. Raises UnitError, also for a duplicate."""
    units = [parse_unit(part.strip()) for part in text.split(",")]
    names = [unit.name for unit in units]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise UnitError(f"units '{text}' name {', '.join(duplicates)} twice")
    return tuple(units)


def sharing_warnings(units: Sequence[Unit], cores: int) -> list[str]:
    """Warnings about units that slow each other down: CPU units that together have more threads than there are cores,
    and a whole GPU with shares of it. Shares of one GPU do not overlap (see multi_dnn_ros.backends.sm_division).
    """
    effect = "they slow each other down, which their separately measured times do not show"
    warnings = []
    threads = {unit.name: unit.threads or cores for unit in units if unit.device == "cpu"}
    if len(threads) > 1 and sum(threads.values()) > cores:
        warnings.append(
            f"{' and '.join(threads)} together have {sum(threads.values())} threads on {cores} cores: {effect}; use "
            "units with fewer threads"
        )
    by_gpu: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.device.startswith("cuda"):
            by_gpu.setdefault(unit.device, []).append(unit)
    warnings += [
        f"{' and '.join(unit.name for unit in gpu_units)} use the same SMs: {effect}; use only shares, or one of them"
        for gpu_units in by_gpu.values()
        if len(gpu_units) > 1 and any(not unit.sms for unit in gpu_units)
    ]
    return warnings
