"""Builds a pipeline from the parameters, ready to serve, and describes it for the node's process."""

from __future__ import annotations

import io
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pickle import Pickler
from typing import TYPE_CHECKING, Any

import torch

from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder, JpegUnavailable, make_jpeg_decoder
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.memory import freeze_heap
from multi_dnn_ros.common.progress_lines import DnnReady
from multi_dnn_ros.common.reporting import cpu_count, cpu_model
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.batch_units import sharing_warnings
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH, run_on_black
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.descriptions import (
    Build,
    DnnDescription,
    EngineDescription,
    Progress,
    ResultDescription,
)
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.planning.fit import Fit

log = logging.getLogger(__name__)


def configure(
    config: NodeConfig,
    build: Build,
    report: Callable[[Progress], None],
    *,
    measure_capacity: bool = True,
) -> tuple[Pipeline, EngineDescription]:
    """Load, cut and warm up the DNNs of `config`. Returns the pipeline and its description.

    build: makes the pipeline from the parameters. report: called with each step. measure_capacity: also measure whether
    the DNNs fit the device; see `_measure_fit`.
    Raises what `build` raises (ValueError or OSError because of parameters and files), ValueError for a device that
    cannot decode JPEG files although a parameter jpeg_decoder requires it, and RuntimeError for a DNN that fails on a
    black image. Call this function from one thread per process only, because torch.export crashes in a second thread.
    """
    progress = _ProgressReport(tuple(config.dnns), report)
    pipeline: Pipeline = build(config, progress)
    pipeline = replace(pipeline, jpeg_decoder=_jpeg_decoder(config, pipeline))
    warm_up(pipeline.tasks, pipeline.device, progress)
    fit = _measure_fit(config, pipeline, progress) if measure_capacity else None
    freeze_heap()
    return pipeline, _describe(pipeline, fit)


def find_devices(config: NodeConfig, build: Build) -> dict[str, str]:
    """The name of the device of each DNN, which the node's process cannot know: it does not know the GPUs.

    Raises ConfigError with all problems of the parameters, because problems of the last device would otherwise be
    reported only when the DNNs of the other devices are ready.
    """
    from multi_dnn_ros.pipeline.choices import ConfigError  # these load torchvision, which only some builds need
    from multi_dnn_ros.pipeline.devices import devices_in_use, dnn_units

    problems = default_build.check(config) if build is default_build.build else ()
    if problems:
        raise ConfigError("\n".join(problems))
    units = dnn_units(config)
    for warning in sharing_warnings(devices_in_use(units), cpu_count()):
        log.warning("parameters dnn.<dnn>.device: %s", warning)
    return {dnn: unit.name for dnn, unit in units.items()}


def describe_failure(error: Exception) -> tuple[str, bool]:
    """The text for an error of configuring, and whether it was expected.

    ValueError and OSError are expected: problems of parameters and files, described by their message. The text of any
    other error is its traceback.
    """
    expected = isinstance(error, (ValueError, OSError))
    return (str(error) if expected else "".join(traceback.format_exception(error)).rstrip()), expected


def warm_up(tasks: Sequence[DnnTask], device: torch.device, progress: Callable[[str], None]) -> None:
    """Run each task on a black image, including decoding, and check that its result can be sent to another process.

    This way the first frame is neither delayed by allocations nor lost to an error of the model.
    Raises RuntimeError with the name of a DNN that fails; ExtensionError if a decoder of another package fails, or if
    the result cannot be sent.
    """
    for task in tasks:
        begin = time.perf_counter()
        try:
            check_sendable(run_on_black(task, device, *task.enlarge_to_min((HEIGHT, WIDTH))))
        except ExtensionError as error:
            raise ExtensionError(f"DNN '{task.name}' fails on a black image: {error}") from error
        except Exception as error:
            raise RuntimeError(f"DNN '{task.name}' fails on a black image: {type(error).__name__}: {error}") from error
        progress(f"DNN {task.name}: first run took {(time.perf_counter() - begin) * 1e3:.0f} ms")


def check_sendable(result: Any) -> None:
    """Raise ExtensionError if `result` cannot be pickled or holds objects of PyTorch.

    Unpickling these would import PyTorch in the node's process: its memory grows from 85 to 543 MiB.
    """
    text = f"its result, of type {type(result).__module__}.{type(result).__qualname__},"
    allowed = "allowed: NumPy arrays and plain values"
    try:
        _Pickler(io.BytesIO(), protocol=5).dump(result)
    except _TorchObjectError as error:
        raise ExtensionError(f"{text} holds an object of PyTorch: {error}; {allowed}") from None
    except Exception as error:  # whatever the methods of the result's classes raise
        reason = f"{type(error).__name__}: {summarize_error(error)}"
        raise ExtensionError(f"{text} cannot be pickled: {reason}; {allowed}") from error


class _TorchObjectError(Exception):
    """The message is the name of the object or of its type."""


class _Pickler(Pickler):
    def persistent_id(self, pickled: Any) -> None:
        """Called by pickle with every object, class and function before it is pickled."""
        module = getattr(pickled, "__module__", None)
        if isinstance(module, str) and module.partition(".")[0] == "torch":
            raise _TorchObjectError(f"{module}.{getattr(pickled, '__name__', type(pickled).__name__)}")


class _ProgressReport:
    """Turns lines of progress into :class:`Progress`. The remaining time is estimated from the DNNs that are ready.

    dnns: names in the order in which they become ready. report: called with each Progress.
    """

    def __init__(self, dnns: Sequence[str], report: Callable[[Progress], None]) -> None:
        self._dnns = tuple(dnns)
        self._report = report
        self._begin = self._last_ready = time.monotonic()
        self._ready = 0

    def __call__(self, text: str) -> None:
        dnn = self._dnns[self._ready] if self._ready < len(self._dnns) else ""
        now = time.monotonic()
        if dnn and isinstance(text, DnnReady):
            self._ready += 1
            self._last_ready = now
        left_s = None
        if 0 < self._ready < len(self._dnns):
            mean_s = (self._last_ready - self._begin) / self._ready
            left_s = max(0.0, mean_s * (len(self._dnns) - self._ready) - (now - self._last_ready))
        self._report(Progress(str(text), self._ready, len(self._dnns), left_s, dnn))


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


def _describe(pipeline: Pipeline, fit: Fit | None) -> EngineDescription:
    device = pipeline.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    dnns = {}
    for task in pipeline.tasks:
        results = {
            output_name: ResultDescription(tuple(output.labels), output.decoder.own_threshold, output.result_kind)
            for output_name, output in pipeline.dnns[task.name].outputs.items()
        }
        dnns[task.name] = DnnDescription(tuple(task.cameras), results)
    return EngineDescription(
        str(device),
        name,
        pipeline.workers,
        dnns,
        {} if fit is None else {str(device): fit},
        # torch.__version__ is not a str: unpickling it in the node's process would import torch.
        {"torch": str(torch.__version__), "CUDA": torch.version.cuda or "none"},
        pipeline.jpeg_decoder is not None,
    )
