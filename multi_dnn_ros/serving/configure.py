"""Builds a pipeline from the parameters, ready to serve, and describes it for the node's process."""

from __future__ import annotations

import io
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pickle import Pickler
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.progress_lines import DnnReady
from multi_dnn_ros.planning.batch_units import sharing_warnings
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH, run_on_black
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.descriptions import Build, DnnDescription, EngineDescription, Progress, ResultDescription
from multi_dnn_ros.serving.memory import freeze_heap
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.planning.fit import Fit

log = logging.getLogger(__name__)


def configure(
    config: NodeConfig, build: Build, report: Callable[[Progress], None], *, measure_capacity: bool = True
) -> tuple[Pipeline, EngineDescription]:
    """Load, cut and warm up the DNNs of `config`. Returns the pipeline and its description.

    build: makes the pipeline from the parameters. report: called with each step. measure_capacity: also measure whether
    the DNNs fit the device, for a second or two.
    Raises what `build` raises (ValueError or OSError because of parameters and files), ValueError for a device that
    cannot decode JPEG files although a parameter jpeg_decoder requires it, and RuntimeError for a DNN that fails on a
    black image. Call this function from one thread per process only, because torch.export crashes in a second thread.
    """
    progress = _ProgressReport(len(config.dnns), report)
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
    from multi_dnn_ros.pipeline.settings_check import check_settings

    if build is default_build.build and (problems := check_settings(config, load=False).problems):
        raise ConfigError("\n".join(problems))
    units = dnn_units(config)
    for warning in sharing_warnings(devices_in_use(units), cpu_count()):
        log.warning("parameters dnn.<dnn>.device: %s", warning)
    return {dnn: unit.name for dnn, unit in units.items()}


def describe_failure(error: BaseException) -> tuple[str, bool]:
    """The text for an error of configuring, and whether it was expected: ValueError and OSError, because of parameters
    and files. The text of any other error is its traceback.
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
            _check_sendable(run_on_black(task, device, *task.enlarge_to_min((HEIGHT, WIDTH))))
        except ExtensionError as error:
            raise ExtensionError(f"DNN '{task.name}' fails on a black image: {error}") from error
        except Exception as error:
            raise RuntimeError(f"DNN '{task.name}' fails on a black image: {type(error).__name__}: {error}") from error
        progress(f"DNN {task.name}: first run took {(time.perf_counter() - begin) * 1e3:.0f} ms")


def _check_sendable(result: Any) -> None:
    """Raise ExtensionError if `result` cannot be pickled or holds objects of PyTorch.

    Unpickling these would import PyTorch in the node's process: its memory grows from 85 to 543 MiB.
    """
    try:
        _TorchFreePickler(io.BytesIO(), protocol=5).dump(result)
    except Exception as error:  # whatever the methods of the result's classes raise
        text = f"its result, of type {type(result).__module__}.{type(result).__qualname__}, cannot be sent to the node"
        raise ExtensionError(f"{text}: {summarize_error(error)}; allowed: NumPy arrays and plain values") from error


class _TorchFreePickler(Pickler):
    def persistent_id(self, pickled: Any) -> None:
        """Called by pickle with every object, class and function before it is pickled."""
        module = getattr(pickled, "__module__", None)
        if isinstance(module, str) and module.partition(".")[0] == "torch":
            name = getattr(pickled, "__name__", type(pickled).__name__)
            raise TypeError(f"it holds an object of PyTorch: {module}.{name}")


class _ProgressReport:
    """Turns lines of progress into :class:`Progress`. The remaining time is estimated from the DNNs that are ready.

    total: number of DNNs. report: called with each Progress.
    """

    def __init__(self, total: int, report: Callable[[Progress], None]) -> None:
        self._total = total
        self._report = report
        self._begin = self._last_ready = time.monotonic()
        self._ready = 0

    def __call__(self, text: str) -> None:
        now, left_s = time.monotonic(), None
        if isinstance(text, DnnReady):
            self._ready += 1
            self._last_ready = now
        if 0 < self._ready < self._total:
            mean_s = (self._last_ready - self._begin) / self._ready
            left_s = max(0.0, mean_s * (self._total - self._ready) - (now - self._last_ready))
        self._report(Progress(str(text), self._ready, self._total, left_s))


def _jpeg_decoder(config: NodeConfig, pipeline: Pipeline) -> JpegDecoder | None:
    """The decoder of JPEG files on the device; None if no camera of the DNNs uses it, or if the device cannot.

    Raises ValueError if the parameter jpeg_decoder of a camera requires it.
    """
    served = dict.fromkeys(camera for task in pipeline.tasks for camera in task.cameras)
    modes = {name: it.jpeg_decoder for name in served if (it := config.cameras[name]).transport == "compressed"}
    if all(mode == "cpu" for mode in modes.values()):
        return None
    from multi_dnn_ros.backends.jpeg_decoding import JpegUnavailable, make_jpeg_decoder

    device = pipeline.device
    try:
        return make_jpeg_decoder(device)
    except JpegUnavailable as error:
        for camera in (camera for camera, mode in modes.items() if mode == "gpu"):
            raise ValueError(
                f"parameter camera.{camera}.jpeg_decoder is 'gpu', but a DNN of the camera runs on {device}: {error}; "
                "allowed there: auto, cpu"
            ) from None
        if device.type != "cpu":
            log.info("JPEG images are decoded on the CPU, because %s cannot decode them: %s", device, error)
    return None


def _measure_fit(config: NodeConfig, pipeline: Pipeline, progress: Callable[[str], None]) -> Fit | None:
    """None if a camera has no rate, or if the measurement raises ValueError. With a predictor that knows all layers,
    the times are predicted.
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
    name, versions = cpu_model(), {"onnxruntime": version("onnxruntime")}
    if device.type == "cuda":
        import torch

        # torch.__version__ is not a str: unpickling it in the node's process would import torch.
        name, versions = torch.cuda.get_device_name(device), {"torch": str(torch.__version__)}
        versions["CUDA"] = torch.version.cuda or "none"
    dnns = {}
    for task in pipeline.tasks:
        results = {
            output_name: ResultDescription(tuple(output.labels), output.decoder.own_threshold, output.result_kind)
            for output_name, output in pipeline.dnns[task.name].outputs.items()
        }
        dnns[task.name] = DnnDescription(tuple(task.cameras), results)
    return EngineDescription(
        device=str(device),
        device_name=name,
        workers=pipeline.workers,
        dnns=dnns,
        fits={} if fit is None else {str(device): fit},
        versions=versions,
        decodes_jpeg=pipeline.jpeg_decoder is not None,
    )
