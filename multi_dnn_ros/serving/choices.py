"""Resolves parameters for this machine: device and backend of a DNN, number of workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.cpu_features import has_int8_products
from multi_dnn_ros.backends.host import CPU, as_torch, gpu_count
from multi_dnn_ros.backends.registry import AUTOMATIC, BACKENDS, BackendRequest, allowed_precisions
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.planning.units import Unit, UnitError, parse_unit
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.planning.timing import Target


class ConfigError(ValueError):
    """A parameter has a value that is impossible on this machine; the message names both, and what is allowed."""


def choose_device(name: str, given: str = "parameter device is") -> torch.device:
    """PyTorch's device with this name. given: beginning of the message. Raises ConfigError if there is no such GPU."""
    return as_torch(device_name(name, given))


def device_name(name: str, given: str = "parameter device is") -> str:
    """`cpu` or `cuda:<number>`, otherwise as choose_device; PyTorch is not imported for a CPU."""
    if name == "auto":
        return "cuda:0" if gpu_count() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise ConfigError(f"{given} '{name}'; allowed: auto, cpu, cuda, cuda:<number>")
    if name == "cpu":
        return name
    index, count = int(name.partition(":")[2] or 0), gpu_count()
    if index >= count:
        raise ConfigError(
            f"{given} '{name}', but PyTorch sees {count} GPUs here; allowed: auto, cpu"
            + "".join(f", cuda:{number}" for number in range(count))
        )
    return f"cuda:{index}"


def dnn_units(config: NodeConfig) -> dict[str, Unit]:
    """The device of each DNN, `auto` being the first GPU or the CPU. Raises ConfigError with all problems."""
    problems: list[str] = []
    units: dict[str, Unit] = {}
    for dnn, settings in config.dnns.items():
        own = settings.device != "auto"
        given = f"parameter {f'dnn.{dnn}.device' if own else 'device'} is"
        name = settings.device if own else config.device
        try:
            units[dnn] = parse_unit(device_name(name) if name == "auto" else name)
            device_name(units[dnn].device, given)
        except UnitError as error:
            problems.append(f"{given} '{name}': {error}")
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return units


def device_of(unit: Unit) -> Any:
    """The device of a unit: PyTorch's for a GPU, backends.host.CPU for a CPU."""
    return CPU if unit.device == "cpu" else as_torch(unit.device)


def workers_and_threads(config: NodeConfig, unit: Unit) -> tuple[int, int]:
    """(workers, CPU threads of each operation) with which a device serves the DNNs of `config`."""
    device = device_of(unit)
    workers = config.workers or default_workers(device, len(config.dnns), unit.threads)
    # On a GPU little work remains for the CPU, and each DNN's thread would start its own pool of OpenMP threads for it.
    threads = config.cpu_threads or (max(1, cpu_count() // workers) if device.type == "cpu" else 1)
    if unit.threads:
        workers = min(workers, unit.threads)
        threads = min(config.cpu_threads or unit.threads, unit.threads // workers)
    return workers, threads


def default_workers(device: torch.device, dnns: int, cores: int = 0) -> int:
    """Default number of workers: on a CPU one per core, but at most one per DNN; on a GPU one.

    cores: number of cores that the DNNs may use; 0: all.

    On a GPU workers only launch jobs, and several would compete for the GIL (8 VGG16 in 8 jobs each, fp16, H200: 4.3 ms
    per inference with one worker, 6.1 with two, 7.9 with eight).
    """
    return 1 if device.type == "cuda" else max(1, min(dnns, cores or cpu_count()))


def backend_name(
    name: str, device: torch.device, dnn: str = "<dnn>", precision: str = "auto", *, given: str = ""
) -> str:
    """The backend for parameter `dnn.<dnn>.backend` on this device. Raises ConfigError if it cannot run there.

    precision: parameter `dnn.<dnn>.precision`, on which the meaning of `auto` depends, because not every backend has
    every precision. given: what precedes `backend` and `precision` in messages, `--` for options; "": as parameters.
    """
    if name == "auto":
        return _automatic(device, precision, compiles=not missing_compiler(device))
    where = f"{given or f'parameter dnn.{dnn}.'}backend"
    try:
        precisions = BACKENDS.get(name).precisions
    except ExtensionError as error:
        raise ConfigError(f"{where}: {error}") from None
    if device.type not in precisions:
        others = (spec.name for spec in BACKENDS.usable() if device.type in spec.precisions)
        raise ConfigError(f"{where} is '{name}', but the device is {device}; allowed: auto, {', '.join(others)}")
    return name


def _automatic(device: torch.device, precision: str, *, compiles: bool) -> str:
    """What `auto` means. compiles: whether it may be a backend that compiles."""
    specs = [BACKENDS.get(name) for name in AUTOMATIC[device.type]]
    allowed = (each.name for each in specs if precision in each.precisions[device.type] and compiles >= each.compiles)
    return next(allowed, specs[-1].name)


def check_backend(
    name: str, device: torch.device, precision: str = "auto", dnn: str = "<dnn>", *, given: str = ""
) -> str:
    """As backend_name, and raises ConfigError if the backend does not have `precision` on this device."""
    name = backend_name(name, device, dnn, precision, given=given)
    capability = None
    if device.type == "cuda" and precision != "auto":
        import torch

        capability = torch.cuda.get_device_capability(device)
    allowed = allowed_precisions(device.type, name, capability)
    if precision not in allowed:
        reason = ""
        if precision == "int8" and precision in BACKENDS.get(name).precisions[device.type] and not has_int8_products():
            reason = "; int8 needs 8-bit dot products (AVX512-VNNI, AVX-VNNI; asimddp on aarch64), which this CPU lacks"
        raise ConfigError(
            f"{given or f'parameter dnn.{dnn}.'}precision is '{precision}'; allowed with backend {name} on {device}: "
            f"{', '.join(allowed)}{reason}"
        )
    return name


def choose_backend(
    name: str,
    device: torch.device,
    precision: str = "auto",
    *,
    dnn: str = "<dnn>",
    progress: Callable[[str], None] = lambda text: None,
    calibration: Callable[[], Sequence[Tensors]] | None = None,
    single_launch: bool = False,
    branches: int = 1,
    providers: Sequence[str] = (),
    required: bool = False,
) -> Backend:
    """The backend of parameters `dnn.<dnn>.backend` and `.precision`.

    dnn: the DNN's name, for messages. progress: called with a line for each slow step. calibration: returns the DNN's
    inputs for images of its camera; required for int8. single_launch: see BackendRequest. branches: parameter
    `dnn.<dnn>.branches`; ignored by a backend without branches on this device. providers: parameter
    `dnn.<dnn>.providers`; ignored by a backend without execution providers. required: see
    BackendRequest. Raises ConfigError if the backend cannot run on this device, or if another package's cannot be
    created.
    """
    providers = providers or automatic_providers(name, device)
    name = check_backend(name, device, precision, dnn)
    if precision == "int8" and calibration is None:
        raise ConfigError(
            f"dnn.{dnn}: precision int8 needs a whole DNN and calibration images, which this command does not have"
        )
    spec = BACKENDS.get(name)
    request = BackendRequest(
        device, 0.0, None, dnn, progress, precision, calibration, single_launch,
        branches if device.type in spec.branches else 1, tuple(providers), required,
    )  # fmt: skip
    if device.type in spec.takes_onnx:
        return spec.factory(request)
    from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision

    device, chosen = as_torch(device), PRECISIONS[precision]
    backend = spec.factory(replace(request, device=device, tolerance=chosen.tolerance(device), dtype=chosen.dtype))
    return backend if precision == "auto" else InPrecision(chosen, backend, dnn)


def automatic_providers(backend: str, device: torch.device) -> tuple[str, ...]:
    """What an empty parameter `providers` means with this parameter `backend`; (): the order of preference.

    With `auto` on a CPU: provider cpu, whichever build of ONNX Runtime is installed.
    """
    return ("cpu",) if backend == "auto" and device.type == "cpu" else ()


def timing_target(name: str, settings: DnnConfig, device: torch.device) -> Target:
    """Device, backend and precision for timing the layers of DNN `name`: as it is served, on its share of the SMs.

    Two exceptions: instead of a backend that compiles, the device's automatic one is used, because compiling layer by
    layer takes minutes; and instead of int8, which is calibrated for whole DNNs, float32, whose times are longer.
    """
    from multi_dnn_ros.planning.layer_plan import ROUNDS
    from multi_dnn_ros.planning.timing import Target

    served_by = backend_name(settings.backend, device, name, settings.precision)
    compiles = BACKENDS.get(served_by).compiles
    timed_by = _automatic(device, settings.precision, compiles=False) if compiles else served_by
    precision = "auto" if settings.precision == "int8" else settings.precision
    make_backend = partial(
        choose_backend, timed_by, device, precision, dnn=f"{name}, while it is timed,",
        providers=settings.providers or automatic_providers(settings.backend, device),
    )  # fmt: skip
    return Target(
        as_torch(device), timed_by, make_backend, precision, rounds=ROUNDS, sms=settings.sms, served_by=served_by
    )
