"""Finds all problems of a configuration on this machine at once, before the first DNN is loaded.

Loading, compiling and timing DNNs takes minutes; a wrong file name of the last DNN should be reported before. The
schema checks single values (:mod:`multi_dnn_ros.settings.parameter_fields`); this module checks files, names and
combinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import Registry
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import check_dnn
from multi_dnn_ros.models.registry import MODEL_SOURCES
from multi_dnn_ros.pipeline.bf16_check import missing_instructions
from multi_dnn_ros.pipeline.calibration import CalibrationError, calibration_files
from multi_dnn_ros.pipeline.choices import ConfigError, check_backend, choose_device
from multi_dnn_ros.planning.predictor import Predictor, read_predictor
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig
from multi_dnn_ros.vision.decoders.registry import DECODERS

#: Those used in the engine process; result kinds are used in the node's.
_REGISTRIES: tuple[Registry[Any], ...] = (BACKENDS, DECODERS, MODEL_SOURCES)


def import_registries() -> None:
    """Import every backend, decoder and model source, so that the configuration does not wait for imports."""
    for registry in _REGISTRIES:
        registry.usable()


@dataclass(frozen=True)
class Findings:
    """problems: one line each, with parameter or file, value and what is allowed. warnings: values without effect.

    device, predictor: from the parameters of these names; None: invalid or, for the predictor, not set.
    """

    problems: tuple[str, ...]
    device: torch.device | None
    predictor: Predictor | None
    warnings: tuple[str, ...] = ()


def check_settings(config: NodeConfig) -> Findings:
    """Check everything that can be checked without loading a DNN; takes a second or two per DNN and little memory."""
    for registry in _REGISTRIES:
        registry.report_broken()
    problems: list[str] = []
    warnings: list[str] = [*_rate_warnings(config)]
    device = predictor = None
    try:
        device = choose_device(config.device)
    except ConfigError as error:
        problems.append(str(error))
    try:
        predictor = read_predictor(Path(config.predictor)) if config.predictor else None
    except ProfileError as error:
        problems.append(
            f"parameter predictor is '{config.predictor}'; expected a file of `multi-dnn profile learn`: {error}"
        )
    for name, settings in config.dnns.items():
        problems.extend(_camera_problems(name, settings, config))
        problems.extend(_execution_problems(name, settings, device))
        warnings.extend(_batch_warnings(name, settings, len(set(settings.cameras or config.cameras))))
        if device is not None and (warning := missing_instructions(name, settings.precision, device)):
            warnings.append(warning)
        try:
            check_dnn(name, settings)
        except ModelError as error:
            problems.extend(str(error).splitlines())
    return Findings(tuple(problems), device, predictor, tuple(warnings))


def _camera_problems(name: str, settings: DnnConfig, config: NodeConfig) -> Iterator[str]:
    for camera in settings.cameras:
        if camera not in config.cameras:
            yield (
                f"parameter dnn.{name}.cameras names '{camera}'; "
                f"allowed are {', '.join(config.cameras)} (parameter cameras)"
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
            "at most one frame of each"
        )
    if settings.batch_delay_ms and settings.max_batch == 1:
        yield (
            f"parameter dnn.{name}.batch_delay_ms is {settings.batch_delay_ms:g}, but max_batch is 1: no DNN waits for "
            "frames that it cannot take together"
        )


def _execution_problems(name: str, settings: DnnConfig, device: torch.device | None) -> Iterator[str]:
    """Problems of backend, precision, SMs and capture. device: None: unknown; what depends on it is not checked."""
    if settings.max_batch > 1 and settings.capture_preprocess:
        yield (
            f"parameter dnn.{name}.capture_preprocess is true with max_batch {settings.max_batch}: it writes one "
            "image where the first job reads; allowed with max_batch above 1: false"
        )
    if settings.max_batch > 1 and settings.tiles != "1x1":
        yield (
            f"parameter dnn.{name}.max_batch is {settings.max_batch} with tiles '{settings.tiles}': the tiles of one "
            "image are the batch; allowed with tiles: 1"
        )
    if device is None:
        return
    try:
        check_backend(settings.backend, device, settings.precision, name)
    except ConfigError as error:
        yield str(error)
    else:
        if settings.precision == "int8":
            try:
                calibration_files(settings.calibration_images)
            except CalibrationError as error:
                yield f"parameter dnn.{name}.calibration_images is '{settings.calibration_images}': {error}"
    if not settings.sms:
        return
    problem = green_contexts.sms_problem(device, settings.sms)
    if not problem:
        try:
            green_contexts.make_stream(device, settings.sms)
        except RuntimeError as error:
            problem = f"CUDA reports: {summarize_error(error)}"
    if problem:
        yield f"parameter dnn.{name}.sms is {settings.sms}; {problem}; 0: the whole device"
