"""From parameters to a pipeline that is ready to serve, and what others need to know of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from multi_dnn_ros.common.memory import freeze_heap
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.serving.host import Build, Description, DnnDescription, Progress
from multi_dnn_ros.serving.progress import ProgressReport, durations_file, keep_durations, read_durations
from multi_dnn_ros.serving.warm_up import warm_up
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.planning.image_sizes import Fit


def configure(
    config: NodeConfig, dnns: Sequence[str], build: Build, tell: Callable[[Progress], None], *, judge: bool = True
) -> tuple[Pipeline, Description]:
    """Make the DNNs `dnns` of `config` ready: load, cut, warm up; and measure the capacity if `judge` is set.

    Raises what `build` raises (ValueError or OSError for mistakes in parameters and files), and RuntimeError for a DNN
    that fails on a black image. To be called from one and the same thread of a process: torch.export, which cuts the
    DNNs, crashes when it runs in a second one.
    """
    part = config.model_copy(update={"dnns": {name: config.dnns[name] for name in dnns}})
    file = durations_file(part, library_versions())
    report = ProgressReport(dnns, read_durations(file), tell)
    pipeline: Pipeline = build(part, report)
    warm_up(pipeline.tasks, pipeline.device, report)
    found = _judged(part, pipeline, report) if judge else None
    freeze_heap()
    keep_durations(file, report.finished())
    return pipeline, _described(pipeline, found)


def refusal(error: Exception) -> tuple[str, bool]:
    """What to tell of an error while configuring, and whether it was expected.

    Mistakes in parameters and files are told in words; anything else with where it happened.
    """
    expected = isinstance(error, (ValueError, OSError))
    return (str(error) if expected else "".join(traceback.format_exception(error)).rstrip()), expected


def library_versions() -> dict[str, str]:
    """Of PyTorch and CUDA, as a bug report needs them."""
    # PyTorch's version is of a class of its own, which who unpickles it would have to import.
    return {"torch": str(torch.__version__), "CUDA": torch.version.cuda or "none"}


def _judged(config: NodeConfig, pipeline: Pipeline, tell: Callable[[str], None]) -> Fit | None:
    """Measure each DNN alone and among the others, a second or two; None unless every camera has a rate.

    With a predictor times are predicted, as far as it knows the layers.
    """
    rates = {name: camera.rate_hz for name, camera in config.cameras.items()}
    if not all(rates.values()):
        return None
    from multi_dnn_ros.pipeline.fit_check import measure_fit

    try:
        return measure_fit(config, pipeline, {}, rates, pipeline.predictor)
    except ValueError as error:
        tell(f"capacity is not known: {error}")
        return None


def _described(pipeline: Pipeline, fit: Fit | None) -> Description:
    device = pipeline.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return Description(
        str(device),
        name,
        pipeline.workers,
        {
            task.name: DnnDescription(
                tuple(task.cameras),
                tuple(pipeline.dnns[task.name].labels),
                pipeline.dnns[task.name].decoder.own_threshold,
                pipeline.dnns[task.name].result_kind,
            )
            for task in pipeline.tasks
        },
        fit,
        library_versions(),
    )
