"""Builds a pipeline from the parameters, ready to serve, and describes it for the node's process."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder, JpegUnavailable, make_jpeg_decoder
from multi_dnn_ros.common.memory import freeze_heap
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.planning.frame_times import time_on_black_ms
from multi_dnn_ros.serving.host import Build, DnnDescription, EngineDescription, Progress, ResultDescription
from multi_dnn_ros.serving.progress import ProgressReport, durations_file, keep_durations, read_durations
from multi_dnn_ros.serving.warm_up import warm_up
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.planning.fit import Fit

log = logging.getLogger(__name__)


def configure(
    config: NodeConfig,
    dnns: Sequence[str],
    build: Build,
    report: Callable[[Progress], None],
    *,
    measure_capacity: bool = True,
    timed: Sequence[str] = (),
) -> tuple[Pipeline, EngineDescription]:
    """Load, cut and warm up the DNNs `dnns` of `config`. Returns the pipeline and its description.

    build: makes the pipeline from the parameters. report: called with each step. measure_capacity: also measure whether
    the DNNs fit the device; see `_measure_fit`. timed: DNNs whose time per frame is measured.
    Raises what `build` raises (ValueError or OSError because of parameters and files), ValueError for a device that
    cannot decode JPEG files although a parameter jpeg_decoder requires it, and RuntimeError for a DNN that
    fails on a black image. Call this function from one thread per process only, because torch.export crashes in a
    second thread.
    """
    part = config.model_copy(update={"dnns": {name: config.dnns[name] for name in dnns}})
    file = durations_file(part, library_versions())
    progress = ProgressReport(dnns, read_durations(file), report)
    pipeline: Pipeline = build(part, progress)
    pipeline = replace(pipeline, jpeg_decoder=_jpeg_decoder(config, pipeline))
    warm_up(pipeline.tasks, pipeline.device, progress)
    fit = _measure_fit(part, pipeline, progress) if measure_capacity else None
    service_ms = {task.name: time_on_black_ms(task, pipeline.device) for task in pipeline.tasks if task.name in timed}
    freeze_heap()
    keep_durations(file, progress.finished())
    return pipeline, _describe(pipeline, fit, service_ms)


def _jpeg_decoder(config: NodeConfig, pipeline: Pipeline) -> JpegDecoder | None:
    """The decoder of JPEG files on the device; None if no camera of the DNNs uses it, or if the device cannot.

    Raises ValueError if the parameter jpeg_decoder of a camera requires it.
    """
    served = dict.fromkeys(camera for task in pipeline.tasks for camera in task.cameras)
    modes = {
        camera: config.cameras[camera].jpeg_decoder
        for camera in served
        if config.cameras[camera].transport == "compressed"
    }
    if all(mode == "cpu" for mode in modes.values()):
        return None
    try:
        return make_jpeg_decoder(pipeline.device)
    except JpegUnavailable as error:
        required = [camera for camera, mode in modes.items() if mode == "gpu"]
        if required:
            raise ValueError(
                f"parameter camera.{required[0]}.jpeg_decoder is 'gpu', but a DNN of the camera runs on "
                f"{pipeline.device}: {error}; allowed there: auto, cpu"
            ) from None
        if pipeline.device.type != "cpu":
            log.info("JPEG images are decoded on the CPU, because %s cannot decode them: %s", pipeline.device, error)
    return None


def describe_failure(error: Exception) -> tuple[str, bool]:
    """The text for an error of configuring, and whether it was expected.

    ValueError and OSError are expected: problems of parameters and files, described by their message. The text of any
    other error is its traceback.
    """
    expected = isinstance(error, (ValueError, OSError))
    return (str(error) if expected else "".join(traceback.format_exception(error)).rstrip()), expected


def library_versions() -> dict[str, str]:
    """The versions of PyTorch and CUDA, by name."""
    # torch.__version__ is not a str: unpickling it in the node's process would import torch.
    return {"torch": str(torch.__version__), "CUDA": torch.version.cuda or "none"}


def _measure_fit(config: NodeConfig, pipeline: Pipeline, progress: Callable[[str], None]) -> Fit | None:
    """Measure each DNN alone and together with the others, for a second or two.

    None if a camera has no rate, or if the measurement raises ValueError. With a predictor that knows all layers,
    their times are predicted.
    """
    rates = {name: camera.rate_hz for name, camera in config.cameras.items()}
    if not all(rates.values()):
        return None
    from multi_dnn_ros.pipeline.fit_check import measure_fit

    try:
        return measure_fit(config, pipeline, rates, pipeline.predictor)
    except ValueError as error:
        progress(f"capacity is unknown: {error}")
        return None


def _describe(pipeline: Pipeline, fit: Fit | None, service_ms: Mapping[str, float]) -> EngineDescription:
    device = pipeline.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return EngineDescription(
        str(device),
        name,
        pipeline.workers,
        {
            task.name: DnnDescription(
                tuple(task.cameras),
                {
                    name: ResultDescription(tuple(output.labels), output.decoder.own_threshold, output.result_kind)
                    for name, output in pipeline.dnns[task.name].outputs.items()
                },
            )
            for task in pipeline.tasks
        },
        {} if fit is None else {str(device): fit},
        library_versions(),
        service_ms,
        pipeline.jpeg_decoder is not None,
    )
