"""Finds all problems of a configuration on this machine at once, and loads its DNNs.

Loading, compiling and timing DNNs takes minutes; a wrong file name of the last DNN should be reported before that. The
schema checks single values (:mod:`multi_dnn_ros.settings.flat_parameters`); this module checks files, names and
combinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from multi_dnn_ros.backends.host import gpu_count
from multi_dnn_ros.backends.onnx_providers import PROVIDERS, parse
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.registry import MODEL_SOURCES
from multi_dnn_ros.planning.units import Unit
from multi_dnn_ros.serving.choices import ConfigError, backend_name, check_backend, device_of, dnn_units
from multi_dnn_ros.serving.sample_images import ImagesError, sample_files
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    import torch


def import_registries() -> None:
    """Import decoders, model sources and backends (of this package only where there is a GPU) when an engine starts.

    Configuring then does not wait for imports. Logs a warning for each that cannot be used.
    """
    DECODERS.usable()
    MODEL_SOURCES.usable()
    BACKENDS.usable(own=bool(gpu_count()))


def check_settings(config: NodeConfig) -> tuple[Unit, dict[str, Dnn]]:
    """Check all parameters and load the DNNs on the CPU, before one is prepared. Returns their device, and the DNNs.

    Raises ConfigError with all problems, one line each: parameter or file, value, and what is allowed.
    """
    import_registries()
    problems: list[str] = []
    units: dict[str, Unit] = {}
    dnns: dict[str, Dnn] = {}
    try:
        units = dnn_units(config)
    except ConfigError as error:
        problems.extend(str(error).splitlines())
    if len(devices := dict.fromkeys(unit.name for unit in units.values())) > 1:
        problems.append(
            f"the DNNs run on {', '.join(devices)} (parameters dnn.<dnn>.device), but one process runs the DNNs of one "
            "device; allowed here: the same device for all of them, or several with isolation 'process'"
        )
    for name, settings in config.dnns.items():
        for camera in settings.cameras:
            if camera not in config.cameras:
                allowed = f"allowed: {', '.join(config.cameras)} (parameter cameras)"
                problems.append(f"parameter dnn.{name}.cameras names '{camera}'; {allowed}")
        onnx = False
        if name in units:
            device = device_of(units[name])
            try:
                backend = backend_name(settings.backend, device, name, settings.precision)
                onnx = device.type in BACKENDS.get(backend).takes_onnx
                check_backend(settings.backend, device, settings.precision, name)
            except ConfigError as error:
                problems.append(str(error))
            else:
                problems.extend(_provider_problems(name, settings, device))
                problems.extend(_calibration_problems(name, settings))
            problems.extend(_sms_problems(name, settings, device))
        try:
            dnns[name] = load_dnn(name, settings, onnx=onnx)
        except ModelError as error:
            problems.extend(str(error).splitlines())
    if problems:
        raise ConfigError("\n".join(problems))
    return next(iter(units.values())), dnns


def _calibration_problems(name: str, settings: DnnConfig) -> Iterator[str]:
    if settings.precision == "int8":
        try:
            sample_files(settings.calibration_images)
        except ImagesError as error:
            yield f"parameter dnn.{name}.calibration_images is '{settings.calibration_images}': {error}"


def _provider_problems(name: str, settings: DnnConfig, device: torch.device) -> Iterator[str]:
    chosen = {text: parse(text).provider for text in settings.providers}
    for text, provider in chosen.items():
        if device.type not in provider.device_types:
            fit = ", ".join(each.name for each in PROVIDERS.values() if device.type in each.device_types)
            yield f"parameter dnn.{name}.providers names '{text}', but the device is {device}; allowed there: {fit}"
    if chosen and not any(settings.precision in provider.precisions for provider in chosen.values()):
        have = "; ".join(f"{provider.name}: {', '.join(provider.precisions)}" for provider in chosen.values())
        yield f"parameter dnn.{name}.precision is '{settings.precision}'; allowed with its providers: {have}"


def _sms_problems(name: str, settings: DnnConfig, device: torch.device) -> Iterator[str]:
    if not settings.sms:
        return
    problem = f"only an NVIDIA GPU can be partitioned; the device is {device}"
    if device.type != "cpu":
        from multi_dnn_ros.backends import green_contexts

        problem = green_contexts.sms_problem(device, settings.sms)
        if not problem:
            try:
                green_contexts.make_stream(device, settings.sms)
            except RuntimeError as error:
                problem = f"CUDA reports: {summarize_error(error)}"
    if problem:
        yield f"parameter dnn.{name}.sms is {settings.sms}; {problem}; 0: the whole device"
