"""The processors of this machine, and which backends and precisions run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil
import torch

from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.cpu_features import has_bf16_products, has_int8_products
from multi_dnn_ros.backends.onnx_providers import missing_provider
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.registry import BACKENDS, BackendSpec, allowed_precisions, library_version
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.common.resources import cpu_count


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

    features: instructions, or the compute capability, that decide the precisions.
    """

    id: str
    name: str
    memory_bytes: int
    cores_or_sms: int
    features: tuple[str, ...]
    backends: tuple[BackendSupport, ...]


def find_devices() -> list[Device]:
    """The CPU and all GPUs that PyTorch sees, in that order."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [_cpu(), *(_gpu(index) for index in range(gpus))]


def _cpu() -> Device:
    known = {"int8 products": has_int8_products(), "bf16 products": has_bf16_products()}
    features = tuple(name for name, supported in known.items() if supported)
    memory, backends = psutil.virtual_memory().total, _backends(torch.device("cpu"), None)
    return Device("cpu", cpu_model(), memory, cpu_count(), features, tuple(backends))


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
