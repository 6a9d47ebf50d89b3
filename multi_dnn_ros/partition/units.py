"""The units that a batch can be divided among: CPU threads, GPUs, and execution providers of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.planning.units import UNIT_FORMS, Unit, UnitError, parse_unit


def parse_units(text: str) -> tuple[Unit, ...]:
    """Units separated by commas, in order. Raises UnitError for an unknown or repeated one."""
    units = tuple(_parse(part.strip()) for part in text.split(","))
    names = [unit.name for unit in units]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise UnitError(f"units '{text}' name {', '.join(duplicates)} twice")
    return units


def _parse(text: str) -> Unit:
    if text.partition(":")[0] in ("cpu", "cuda"):
        return parse_unit(text)
    from multi_dnn_ros.backends import onnx_providers

    try:
        choice = onnx_providers.parse(text)
    except onnx_providers.ProviderError:
        providers = [form for form in onnx_providers.forms() if form not in ("cpu", "cuda")]
        raise UnitError(
            f"unit '{text}' is not known; allowed: {UNIT_FORMS}, or a provider of ONNX Runtime: {', '.join(providers)}"
        ) from None
    if "cuda" in choice.provider.device_types:
        return Unit(choice.text, "cuda:0", provider=choice.text)
    # Images and results are in host memory. A GPU or NPU of OpenVINO computes; the host needs one thread.
    threads = 1 if choice.target and not choice.target.startswith("cpu") else 0
    return Unit(choice.text, "cpu", threads, choice.text)


def check_available(units: Sequence[Unit], precision: str) -> None:
    """Raise UnitError for a unit that this machine does not have, ConfigError for a precision that one lacks."""
    import torch

    from multi_dnn_ros.backends import onnx_providers
    from multi_dnn_ros.serving.choices import check_backend

    gpus, providers = torch.cuda.device_count(), onnx_providers.available()
    for unit in units:
        device = torch.device(unit.device)
        if device.type == "cuda" and device.index >= gpus:
            raise UnitError(f"unit '{unit.name}': there is no such GPU; PyTorch sees {gpus} here")
        if unit.threads > cpu_count():
            raise UnitError(f"unit '{unit.name}' has {unit.threads} threads; this process may use {cpu_count()} cores")
        if unit.provider and unit.provider.partition(":")[0] not in providers:
            raise UnitError(
                f"unit '{unit.name}': the installed ONNX Runtime has the providers {', '.join(providers)} "
                "(docs/devices.md)"
            )
        backend = "onnxruntime" if unit.provider else "auto"
        check_backend(backend, device, precision, given="--")
