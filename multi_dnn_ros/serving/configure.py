"""Builds a pipeline from the parameters, ready to serve, and describes it for the node's process."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.fit import Demand, Fit
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH, FrameTimes, measure_times, run_on_black, single_image
from multi_dnn_ros.serving.choices import timing_target
from multi_dnn_ros.serving.descriptions import Build, DnnDescription, EngineDescription, ResultDescription
from multi_dnn_ros.serving.process_settings import freeze_heap
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.serving.tasks import Pipeline

#: (DNN, where it runs, number of other DNNs that run at the same time) -> milliseconds of one image, without
#: preprocessing and decoding, and the reasons why they cannot be predicted.
Predict = Callable[["Dnn", "Target", int], tuple[float, tuple[str, ...]]]


def configure(
    config: NodeConfig, build: Build, progress: Callable[[str], None], *, measure_capacity: bool = True
) -> tuple[Pipeline, EngineDescription]:
    """Load, cut and warm up the DNNs of `config`. Returns the pipeline and its description.

    build: makes the pipeline from the parameters. progress: called with each step. measure_capacity: also measure
    whether the DNNs fit the device, for a second or two.
    Raises what `build` raises (ValueError or OSError because of parameters and files), and RuntimeError for a DNN that
    fails on a black image. Call it from one thread per process only, because torch.export crashes in a second thread.
    """
    pipeline: Pipeline = build(config, progress)
    warm_up(pipeline.tasks, pipeline.device, progress)
    fit = _measured_fit(config, pipeline, progress) if measure_capacity else None
    freeze_heap()
    return pipeline, _describe(pipeline, fit)


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
    """Raise ExtensionError if `result` cannot be pickled."""
    try:
        pickle.dumps(result, protocol=5)
    except Exception as error:  # whatever the methods of the result's classes raise
        text = f"its result, of type {type(result).__module__}.{type(result).__qualname__}, cannot be sent to the node"
        raise ExtensionError(f"{text}: {summarize_error(error)}; allowed: NumPy arrays and plain values") from error


def measure_fit(
    config: NodeConfig, pipeline: Pipeline, rates: Mapping[str, float], predict: Predict | None = None
) -> Fit:
    """The times of the DNNs of `config`, and their demand at these rates. The engine must not serve at the same time.

    rates: hertz by camera; `max_rate_hz` may limit them. A DNN with `enable: false` counts, because it can be enabled
    at any time. predict: its times replace measured ones if it knows all DNNs. Images are black and have 640x480
    pixels.
    """
    unpredicted: tuple[str, ...] = ()
    times: Mapping[str, FrameTimes] = {}
    if predict is not None:
        times, unpredicted = _predicted_times(config, pipeline, predict)
    if not times or unpredicted:
        times = measure_times(pipeline.tasks, pipeline.device, pipeline.servers)
    demands = []
    for task in pipeline.tasks:
        own, settings = times[task.name], config.dnns[task.name]
        first, *rest = own.jobs_ms
        demands.append(
            Demand(
                task.name,
                {camera: settings.limited_hz(rates[camera]) for camera in task.cameras},
                own.inference_ms,
                (own.preprocess_ms + first, *rest),
                own.batch,
                settings.deadline_ms or None,
                settings.priority,
                settings.batch_delay_ms if task.batches else 0.0,
            )
        )
    return Fit(tuple(demands), pipeline.servers, pipeline.device.type == "cuda", unpredicted)


def _predicted_times(
    config: NodeConfig, pipeline: Pipeline, predict: Predict
) -> tuple[Mapping[str, FrameTimes], tuple[str, ...]]:
    """Times of single images, divided equally among the jobs; preprocessing and decoding are measured."""
    tasks = [single_image(task) for task in pipeline.tasks]
    times = measure_times(tasks, pipeline.device, pipeline.servers)
    unpredicted: list[str] = []
    for task in tasks:
        target = timing_target(task.name, config.dnns[task.name], pipeline.device)
        ms, reasons = predict(pipeline.dnns[task.name], target, min(pipeline.servers, len(tasks)) - 1)
        unpredicted += [f"{task.name}: {reason}" for reason in reasons]
        times[task.name] = replace(times[task.name], jobs_ms=(ms / task.jobs,) * task.jobs)
    return times, tuple(unpredicted)


def _measured_fit(config: NodeConfig, pipeline: Pipeline, progress: Callable[[str], None]) -> Fit | None:
    """None if a camera has no rate, or if the measurement raises ValueError."""
    rates = {name: camera.rate_hz for name, camera in config.cameras.items()}
    if not all(rates.values()):
        return None
    try:
        return measure_fit(config, pipeline, rates)
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
    )
