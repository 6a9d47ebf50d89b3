"""Finds all problems of a configuration on this machine at once, and loads its DNNs.

Loading, compiling and timing DNNs takes minutes; a wrong file name of the last DNN should be reported before that. The
schema checks single values (:mod:`multi_dnn_ros.settings.parameter_fields`); this module checks files, names and
combinations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.backends.host import gpu_count
from multi_dnn_ros.backends.onnx_providers import PROVIDERS, parse
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import Registry
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.registry import MODEL_SOURCES
from multi_dnn_ros.pipeline.calibration import CalibrationError, calibration_files
from multi_dnn_ros.pipeline.choices import ConfigError, backend_name, check_backend, takes_onnx
from multi_dnn_ros.pipeline.devices import device_of, devices_in_use, dnn_units
from multi_dnn_ros.pipeline.image_check import image_check_problems
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.planning.checked_file import ProfileError
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.planning.predictor import Predictor

#: The registries that the engine process uses; the node's process uses result kinds.
_REGISTRIES: tuple[Registry[Any], ...] = (BACKENDS, DECODERS, MODEL_SOURCES)


def import_registries() -> None:
    """Import decoders, model sources and backends (of this package only where there is a GPU) when an engine starts.

    Configuring then does not wait for imports. Logs a warning for each that cannot be used.
    """
    for registry in _REGISTRIES:
        registry.usable(own=registry is not BACKENDS or bool(gpu_count()))


@dataclass(frozen=True)
class Findings:
    """problems: one line each, with parameter or file, value and what is allowed. warnings: values that have no effect,
    are slow, or prevent a check.

    units: the device of each DNN; empty: invalid. predictor: from the parameter of this name; None: invalid or not
    set. dnns: those that could be loaded.
    """

    problems: tuple[str, ...]
    units: Mapping[str, Unit]
    predictor: Predictor | None
    warnings: tuple[str, ...] = ()
    dnns: dict[str, Dnn] = field(default_factory=dict)


def check_settings(config: NodeConfig, *, load: bool = True) -> Findings:
    """Find the problems of all parameters and, with `load`, load the DNNs on the CPU, before one is prepared."""
    import_registries()
    problems: list[str] = []
    warnings: list[str] = [*_rate_warnings(config)]
    predictor = None
    units: Mapping[str, Unit] = {}
    dnns: dict[str, Dnn] = {}
    try:
        units = dnn_units(config)
    except ConfigError as error:
        problems.extend(str(error).splitlines())
    devices = devices_in_use(units)
    if config.isolation == "none" and len(devices) > 1:
        names = ", ".join(unit.name for unit in devices)
        problems.append(
            f"parameter isolation is 'none', but the DNNs run on {names}; allowed with several devices: process"
        )
    try:
        predictor = _read_predictor(Path(config.predictor)) if config.predictor else None
    except ProfileError as error:
        problems.append(
            f"parameter predictor is '{config.predictor}'; expected a file of `multi-dnn profile learn`: {error}"
        )
    except MissingExtra as error:
        problems.append(f"parameter predictor is '{config.predictor}': {error}")
    for name, settings in config.dnns.items():
        problems.extend(_camera_problems(name, settings, config))
        dnn_devices = (device_of(units[name]),) if name in units else ()
        problems.extend(_execution_problems(name, settings, dnn_devices))
        warnings.extend(_batch_warnings(name, settings, len(set(settings.cameras or config.cameras))))
        warnings.extend(_branch_warnings(name, settings, dnn_devices))
        warnings.extend(_provider_warnings(name, settings, dnn_devices))
        runs_onnx = _runs_onnx(name, settings, dnn_devices)
        problems.extend(image_check_problems(name, settings, onnx=runs_onnx))
        try:
            if load:
                dnns[name] = load_dnn(name, settings, onnx=runs_onnx)
        except ModelError as error:
            problems.extend(str(error).splitlines())
    return Findings(tuple(problems), units, predictor, tuple(warnings), dnns)


def _read_predictor(path: Path) -> Predictor:
    with optional("a predictor"):
        from multi_dnn_ros.planning.predictor import read_predictor

    return read_predictor(path)


def _runs_onnx(name: str, settings: DnnConfig, devices: Sequence[torch.device]) -> bool:
    """Whether the DNN runs as an ONNX graph; no for a device or backend that is reported as a problem."""
    try:
        return any(takes_onnx(settings, device, name) for device in devices)
    except ConfigError:
        return False


def _camera_problems(name: str, settings: DnnConfig, config: NodeConfig) -> Iterator[str]:
    for camera in settings.cameras:
        if camera not in config.cameras:
            yield (
                f"parameter dnn.{name}.cameras names '{camera}'; "
                f"allowed: {', '.join(config.cameras)} (parameter cameras)"
            )


def _rate_warnings(config: NodeConfig) -> Iterator[str]:
    without = [name for name, camera in config.cameras.items() if not camera.rate_hz]
    if without and len(without) < len(config.cameras):
        yield (
            f"parameter camera.{without[0]}.rate_hz is 0, while other cameras have a rate: whether the DNNs fit the "
            "device is only measured with a rate for every camera"
        )


def _batch_warnings(name: str, settings: DnnConfig, cameras: int) -> Iterator[str]:
    if settings.max_batch > 1 and cameras == 1:
        yield (
            f"parameter dnn.{name}.max_batch is {settings.max_batch}, but {name} serves one camera: an inference takes "
            "at most one frame per camera"
        )
    if settings.batch_delay_ms and settings.max_batch == 1:
        yield (
            f"parameter dnn.{name}.batch_delay_ms is {settings.batch_delay_ms:g}, but max_batch is 1: batch_delay_ms "
            "has no effect; set max_batch above 1, or batch_delay_ms to 0"
        )


def _branch_warnings(name: str, settings: DnnConfig, devices: tuple[torch.device, ...]) -> Iterator[str]:
    if settings.branches == 1:
        return
    for device in devices:
        try:
            backend = backend_name(settings.backend, device, name, settings.precision)
        except ConfigError:
            continue  # reported as a problem
        if device.type not in BACKENDS.get(backend).branches:
            have = " or ".join(spec.name for spec in BACKENDS.usable() if "cuda" in spec.branches)
            yield (
                f"parameter dnn.{name}.branches is {settings.branches} and has no effect with backend {backend} on "
                f"{device}: branches run at the same time on a GPU with backend {have}"
            )


def _provider_warnings(name: str, settings: DnnConfig, devices: tuple[torch.device, ...]) -> Iterator[str]:
    for device in devices if settings.providers else ():
        try:
            backend = backend_name(settings.backend, device, name, settings.precision)
        except ConfigError:
            continue  # reported as a problem
        if not BACKENDS.get(backend).providers:
            have = ", ".join(spec.name for spec in BACKENDS.usable() if spec.providers)
            yield (
                f"parameter dnn.{name}.providers is {settings.providers} and has no effect with backend {backend} on "
                f"{device}; backends with execution providers: {have}"
            )


def _execution_problems(name: str, settings: DnnConfig, devices: tuple[torch.device, ...]) -> Iterator[str]:
    """Problems of backend, precision, SMs and batches. devices: empty: unknown; what depends on them is not checked."""
    calibrated = False
    for device in devices:
        try:
            check_backend(settings.backend, device, settings.precision, name)
        except ConfigError as error:
            yield str(error)
        else:
            calibrated = calibrated or settings.precision == "int8"
            yield from _provider_problems(name, settings, device)
        if settings.sms and (problem := _sms_problem(device, settings.sms)):
            yield f"parameter dnn.{name}.sms is {settings.sms}; {problem}; 0: the whole device"
    if calibrated:
        try:
            calibration_files(settings.calibration_images)
        except CalibrationError as error:
            yield f"parameter dnn.{name}.calibration_images is '{settings.calibration_images}': {error}"


def _provider_problems(name: str, settings: DnnConfig, device: torch.device) -> Iterator[str]:
    for text in settings.providers:
        provider = parse(text).provider
        if device.type not in provider.device_types:
            fit = ", ".join(each.name for each in PROVIDERS.values() if device.type in each.device_types)
            yield f"parameter dnn.{name}.providers names '{text}', but the device is {device}; allowed there: {fit}"
    chosen = [parse(text).provider for text in settings.providers]
    if chosen and not any(settings.precision in provider.precisions for provider in chosen):
        have = "; ".join(f"{provider.name}: {', '.join(provider.precisions)}" for provider in chosen)
        yield f"parameter dnn.{name}.precision is '{settings.precision}'; allowed with its providers: {have}"


def _sms_problem(device: torch.device, sms: int) -> str:
    if device.type == "cpu":
        return f"only an NVIDIA GPU can be partitioned; the device is {device}"
    from multi_dnn_ros.backends import green_contexts

    problem = green_contexts.sms_problem(device, sms)
    if not problem:
        try:
            green_contexts.make_stream(device, sms)
        except RuntimeError as error:
            problem = f"CUDA reports: {summarize_error(error)}"
    return problem
