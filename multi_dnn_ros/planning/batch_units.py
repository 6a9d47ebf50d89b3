"""Units that run parts of a batch. A unit is a device with a backend; on a GPU it may be a share of the SMs.

A unit has a name: ``cpu``, ``cpu:8`` (threads), ``cuda:0``, ``cuda:0/16sms``, ``cpu:1/torchscript`` (backend),
``openvino:gpu``. The part before the first ``:`` or ``/`` is its kind, a name of the registry :data:`UNIT_KINDS`. This
module does not import PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extension_calls import extension_errors, returned_text
from multi_dnn_ros.common.extensions import ExtensionError, Registry, UnknownExtension


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
    """A kind of unit.

    form: syntax of unit names, for messages. parse: makes a unit from its name; raises UnitError. problem: why units of
    the kind cannot be used on this machine, such as a missing library; "" if they can. It is called before a network
    is loaded, not while parsing, because tables may come from another machine.
    """

    name: str
    form: str
    parse: Callable[[str], Unit]
    problem: Callable[[], str] = lambda: ""

    def unit(self, text: str) -> Unit:
        """The unit with this name. Raises UnitError, which names it, also for whatever else `parse` raises."""
        where = f"unit '{text}': "
        with extension_errors(extensions.UNITS, self.name, "parse", where=where, error=UnitError):
            unit: object = self.parse(text)
        if not isinstance(unit, Unit):
            raise UnitError(where + returned_text(extensions.UNITS, self.name, "parse", unit, "a Unit"))
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
    """Raise UnitError if the kind of the unit cannot be used on this machine."""
    kind, where = _kind_of(unit.name), f"unit '{unit.name}': "
    with extension_errors(extensions.UNITS, kind.name, "problem", where=where, error=UnitError):
        problem: object = kind.problem()
    if not isinstance(problem, str):
        raise UnitError(where + returned_text(extensions.UNITS, kind.name, "problem", problem, "a str"))
    if problem:
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
OPENVINO = UnitKind("openvino", "openvino:cpu|gpu|npu[.NUMBER]", _parse_openvino, _missing_openvino)
UNIT_KINDS = Registry(UnitKind, extensions.UNITS)


def parse_unit(text: str) -> Unit:
    """The unit with this name. Raises UnitError for an unknown or unusable kind, or a syntax error.

    Imports only the kind of this unit: the node's process, which must stay free of PyTorch, parses names of devices.
    """
    return _kind_of(text).unit(text)


def _kind_of(text: str) -> UnitKind:
    """The kind of the unit with this name. Raises UnitError if it is unknown or unusable."""
    name = re.split(r"[:/]", text, maxsplit=1)[0]
    try:
        return UNIT_KINDS.get(name)
    except UnknownExtension as error:
        forms = ", ".join(known.form for known in UNIT_KINDS.usable())
        raise UnitError(f"unit '{text}' is of an unknown kind; allowed: {forms}") from error
    except ExtensionError as error:
        raise UnitError(str(error)) from error


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
