"""The processors of this machine: how fast they compute and copy, and which backends and precisions they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import permutations
from typing import Any

import psutil
import torch

from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.cpu_features import has_bf16_products, has_int8_products
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.onnx_providers import missing_provider
from multi_dnn_ros.backends.precision import PRECISIONS, float32_products
from multi_dnn_ros.backends.registry import BACKENDS, BackendSpec, allowed_precisions, library_version
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.copies import Link, measure_host_copies, measure_int8_ops_per_s, measure_link
from multi_dnn_ros.profiling.limits import measure_limits

#: Precisions that differ in speed. `auto` is one of these, or on a GPU fp32 with TF32 convolutions.
MEASURED = ("fp32", "tf32", "fp16", "bf16", "int8")
#: Factor on the problem sizes for a CPU that converts each bf16 number in software.
_EMULATED_SCALE = 0.25

ReportProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class BackendSupport:
    """One backend on one device. precisions: those that it supports there. refused: for each other precision,
    why it is not supported.

    version: of the library that decides its times, "" if that is PyTorch. problem: why the backend cannot run there,
    "" if it can.
    """

    name: str
    version: str = ""
    precisions: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Device:
    """A processor. id: as for parameter `device`. cores_or_sms: cores that this process may use, or SMs of a GPU.

    features: instructions, or the compute capability, that decide the precisions. ops_per_s: by precision, the faster
    of a matrix product and a 3x3 convolution (int8: a matrix product). not_measured: by precision, the reason.
    bytes_per_s: bytes read and written per second by a copy in the device's memory. from_host_bytes_per_s,
    to_host_bytes_per_s: copies from and to page-locked host memory; None for a CPU, or if not measured.
    """

    id: str
    name: str
    memory_bytes: int
    cores_or_sms: int
    features: tuple[str, ...]
    backends: tuple[BackendSupport, ...]
    ops_per_s: dict[str, float] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    bytes_per_s: float | None = None
    from_host_bytes_per_s: float | None = None
    to_host_bytes_per_s: float | None = None

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions in MEASURED that some backend supports on this device."""
        supported = {name for backend in self.backends for name in backend.precisions}
        return tuple(name for name in MEASURED if name in supported)


def find_devices() -> list[Device]:
    """The CPU and all GPUs that PyTorch sees, in that order, not measured."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [_cpu(), *(_gpu(index) for index in range(gpus))]


def count_measurements(devices: Sequence[Device]) -> int:
    """Number of measurements that :func:`measure_devices` makes."""
    gpus = sum(device.id != "cpu" for device in devices)
    return sum(len(device.precisions) for device in devices) + gpus + gpus * (gpus - 1)


def measure_devices(
    devices: Sequence[Device], progress: ReportProgress = lambda done, total, what: None, scale: float = 1.0
) -> tuple[list[Device], list[Link]]:
    """Measure each device alone, one after another, then the links between GPUs.

    progress: called with (measurements done, total, what is measured next). scale: factor on the problem sizes, for
    tests.
    """
    total, done = count_measurements(devices), 0

    def step(what: str) -> None:
        nonlocal done
        progress(done, total, what)
        done += 1

    measured = []
    for device in devices:
        for precision in device.precisions:
            step(f"{device.id} {precision}")
            device = _with_rate(device, precision, scale)
        if device.id != "cpu":
            step(f"{device.id} host copies")
            if (copies := measure_host_copies(torch.device(device.id))) is not None:
                device = replace(device, from_host_bytes_per_s=copies[0], to_host_bytes_per_s=copies[1])
        measured.append(device)
    gpus = [int(device.id.partition(":")[2]) for device in devices if device.id != "cpu"]
    links = []
    for source, target in permutations(gpus, 2):
        step(f"cuda:{source} to cuda:{target}")
        links.append(measure_link(source, target))
    progress(total, total, "")
    return measured, links


def describe(device: Device) -> dict[str, Any]:
    """The device as a dictionary for JSON."""
    content = asdict(device)
    content["cores" if device.id == "cpu" else "sms"] = content.pop("cores_or_sms")
    return {**content, "backends": {backend.pop("name"): backend for backend in content["backends"]}}


def _cpu() -> Device:
    features = [
        name
        for name, supported in (("int8 products", has_int8_products()), ("bf16 products", has_bf16_products()))
        if supported
    ]
    memory, device = psutil.virtual_memory().total, torch.device("cpu")
    return Device("cpu", cpu_model(), memory, cpu_count(), tuple(features), tuple(_backends(device, None)))


def _gpu(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    capability, device = (properties.major, properties.minor), torch.device("cuda", index)
    return Device(
        str(device),
        properties.name,
        properties.total_memory,
        properties.multi_processor_count,
        (f"compute capability {properties.major}.{properties.minor}",),
        tuple(_backends(device, capability)),
    )


def _backends(device: torch.device, capability: tuple[int, int] | None) -> list[BackendSupport]:
    found = []
    for name in BACKENDS.names():
        try:
            found.append(_support(BACKENDS.get(name), device, capability))
        except ExtensionError as error:
            found.append(BackendSupport(name, problem=str(error)))
    return found


def _support(spec: BackendSpec, device: torch.device, capability: tuple[int, int] | None) -> BackendSupport:
    version = library_version(spec)
    if device.type not in spec.precisions:
        types = ", ".join(spec.precisions)
        return BackendSupport(spec.name, version, problem=f"runs on {types} only")
    if spec.compiles and (missing := missing_compiler(device)):
        return BackendSupport(spec.name, version, problem=missing)
    if spec.providers and (missing := missing_provider(device.type)):
        return BackendSupport(spec.name, version, problem=missing)
    by_backend, allowed = spec.precisions[device.type], allowed_precisions(device.type, spec.name, capability)
    refused = {name: _refusal(name, device, by_backend, capability) for name in PRECISIONS if name not in allowed}
    return BackendSupport(spec.name, version, allowed, refused)


def _refusal(
    precision: str, device: torch.device, by_backend: Sequence[str], capability: tuple[int, int] | None
) -> str:
    if precision not in by_backend:
        return f"this backend has no {precision} on {device.type}"
    if device.type == "cuda":
        return f"needs compute capability 8.0; this GPU has {'.'.join(map(str, capability or ()))}"
    return "needs 8-bit dot products (AVX512-VNNI, AVX-VNNI; asimddp on aarch64), which this CPU lacks"


def _with_rate(device: Device, precision: str, scale: float) -> Device:
    if precision == "int8":
        if device.id != "cpu":
            return replace(device, not_measured={**device.not_measured, precision: "measured on a CPU only"})
        rate = measure_int8_ops_per_s(max(8, int(1024 * scale)))
        return replace(device, ops_per_s={**device.ops_per_s, precision: rate})
    if device.id == "cpu" and precision == "bf16" and not has_bf16_products():
        scale *= _EMULATED_SCALE
    target = Target(torch.device(device.id), "eager", Eager, precision)
    try:
        with float32_products(PRECISIONS[precision].tf32 if device.id != "cpu" else None):
            limits = measure_limits(target, scale=scale)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return replace(device, not_measured={**device.not_measured, precision: "not enough free memory"})
    return replace(
        device,
        ops_per_s={**device.ops_per_s, precision: limits.flops_per_s},
        bytes_per_s=device.bytes_per_s or limits.bytes_per_s,
    )
