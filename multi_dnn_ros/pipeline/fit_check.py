"""Measures, or predicts, what decides whether a node's DNNs keep up with its cameras on their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from multi_dnn_ros.pipeline.choices import timing_target
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.planning.fit import Demand, Fit
from multi_dnn_ros.planning.frame_times import measure_alone, measure_speedup, predict_times
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.planning.predictor import Predictor


def measure_fit(
    config: NodeConfig, pipeline: Pipeline, rates: Mapping[str, float], predictor: Predictor | None = None
) -> Fit:
    """The times of the DNNs of `config`, and their demand at these rates. The engine must not serve at the same time.

    rates: hertz by camera; `max_rate_hz` may limit them. A DNN with `enable: false` counts, because it can be enabled
    at any time. predictor: its times are used if it knows all DNNs; otherwise they are measured. Images are black and
    have 640x480 pixels.
    """
    unpredicted: tuple[str, ...] = ()
    times = None
    if predictor is not None:
        settings = config.dnns
        targets = {task.name: timing_target(task.name, settings[task.name], pipeline.device) for task in pipeline.tasks}
        times, speedup, unpredicted = predict_times(pipeline.dnns, pipeline.tasks, predictor, targets, pipeline.servers)
    if times is None or unpredicted:
        times = {task.name: measure_alone(task, pipeline.device) for task in pipeline.tasks}
        speedup = measure_speedup(pipeline.tasks, pipeline.device, pipeline.servers)
    demands = []
    for task in pipeline.tasks:
        own, settings_of_dnn = times[task.name], config.dnns[task.name]
        first, *rest = own.jobs_ms
        demands.append(
            Demand(
                task.name,
                {camera: settings_of_dnn.limited_hz(rates[camera]) for camera in task.cameras},
                own.inference_ms,
                (own.preprocess_ms + first, *rest),
                own.batch,
                settings_of_dnn.deadline_ms or None,
                settings_of_dnn.priority,
                settings_of_dnn.batch_delay_ms if task.batches else 0.0,
            )
        )
    return Fit(tuple(demands), pipeline.servers, speedup, pipeline.device.type == "cuda", unpredicted)
