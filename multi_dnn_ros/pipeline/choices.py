"""What parameters mean on this machine: the device, the workers, the backend and precision of a DNN."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.backends.capture import CudnnBenchmark
from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision, allowed_precisions
from multi_dnn_ros.backends.registry import AUTOMATIC, BACKENDS, BackendRequest, BackendSpec
from multi_dnn_ros.common.cpu_features import has_int8_products
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.planning.job_plan import ROUNDS
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.settings.schema import DnnConfig


class ConfigError(ValueError):
    """A parameter that cannot be met on this machine; the message names it, its value and what is allowed."""


def choose_device(name: str) -> torch.device:
    """The device of parameter `device`; an error that names it where there is no such GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
        raise ConfigError(f"parameter device is '{name}'; allowed: auto, cpu, cuda, cuda:<number>")
    device = torch.device(name)
    if device.type == "cuda":
        index = device.index or 0
        if index >= count:
            raise ConfigError(
                f"parameter device is '{name}', but PyTorch sees {count} GPUs here; allowed: auto, cpu"
                + "".join(f", cuda:{number}" for number in range(count))
            )
        return torch.device("cuda", index)
    return device


def default_workers(device: torch.device, dnns: int) -> int:
    """A worker a core on a CPU, never more than there are DNNs.

    One on a GPU: it only launches, on the streams of all DNNs, and two would take Python's lock from each other
    (8 VGG16 in 8 jobs each, fp16, H200: 4.3 ms an inference with one, 6.1 with two, 7.9 with eight).
    """
    return 1 if device.type == "cuda" else max(1, min(dnns, cpu_count()))


def backend_name(name: str, device: torch.device, dnn: str = "<dnn>", precision: str = "auto") -> str:
    """What parameter `dnn.<dnn>.backend` means on this device; ConfigError where it cannot run there.

    precision: parameter `dnn.<dnn>.precision`, which decides what `auto` is: not every backend has every precision.
    """
    if name == "auto":
        automatic = AUTOMATIC[device.type]
        return next(
            (each for each in automatic if precision in _spec(each, dnn).precisions[device.type]), automatic[-1]
        )
    if device.type not in _spec(name, dnn).precisions:
        others = (spec.name for spec in BACKENDS.usable() if device.type in spec.precisions)
        raise ConfigError(
            f"parameter dnn.{dnn}.backend is '{name}', but the device is {device}; allowed: auto, {', '.join(others)}"
        )
    return name


def _spec(name: str, dnn: str) -> BackendSpec:
    try:
        return BACKENDS.get(name)
    except ExtensionError as error:
        raise ConfigError(f"parameter dnn.{dnn}.backend: {error}") from None


def check_backend(name: str, device: torch.device, precision: str = "auto", dnn: str = "<dnn>") -> str:
    """What parameter `dnn.<dnn>.backend` means with `.precision` on this device; ConfigError where it cannot run."""
    name = backend_name(name, device, dnn, precision)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" and precision != "auto" else None
    allowed = allowed_precisions(device.type, name, capability)
    if precision not in allowed:
        reason = ""
        if precision == "int8" and name == "onnxruntime" and not has_int8_products():
            reason = ", as this CPU has no 8-bit dot product (AVX512-VNNI, AVX-VNNI; asimddp on aarch64)"
        raise ConfigError(
            f"parameter dnn.{dnn}.precision is '{precision}'; allowed with backend {name} on {device}: "
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
    single_launch: bool = True,
) -> Backend:
    """The backend of parameters `dnn.<dnn>.backend` and `.precision`.

    dnn: the DNN's name, for messages. progress: gets a line a step of what takes long. calibration: gives the DNN's
    inputs for images of its camera, which int8 needs. single_launch: see BackendRequest. ConfigError where it cannot
    run on this device.
    """
    name = check_backend(name, device, precision, dnn)
    if precision == "int8" and calibration is None:
        raise ConfigError(f"dnn.{dnn}: int8 is calibrated on images of a whole DNN; here there are none")
    spec, chosen = _spec(name, dnn), PRECISIONS[precision]
    request = BackendRequest(
        device, chosen.tolerance(device), chosen.dtype, dnn, progress, precision, calibration, single_launch
    )
    backend = spec.factory(request)
    if precision != "auto":
        backend = InPrecision(chosen, backend, dnn)
    return CudnnBenchmark(backend) if device.type in spec.captures else backend


def timing_target(name: str, settings: DnnConfig, device: torch.device) -> Target:
    """Where and how the layers of DNN `name` are timed: by the backend that serves it, on its share of the SMs.

    But a backend that compiles would compile each layer by itself, for minutes: what it compiles is timed as it runs
    without it. And int8 is calibrated on whole DNNs: its layers are timed in float32, which takes longer.
    """
    serves = backend_name(settings.backend, device, name, settings.precision)
    compiles = _spec(serves, name).compiles
    times = backend_name("auto", device, name, settings.precision) if compiles else serves
    precision = "auto" if settings.precision == "int8" else settings.precision
    make_backend = partial(choose_backend, times, device, precision, dnn=f"{name}, while it is timed,")
    return Target(device, times, make_backend, precision, rounds=ROUNDS, sms=settings.sms, served_by=serves)
