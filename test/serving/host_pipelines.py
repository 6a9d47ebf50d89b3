"""A picklable build whose DNNs named `faulty...` execute the fault that the image contains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fake_pipelines

from multi_dnn_ros.engine import health
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig


def build(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Like fake_pipelines.build, but the other DNNs ignore the fault in an image."""
    pipeline = fake_pipelines.build(config, progress)
    tasks = tuple(
        task if task.name.startswith("faulty") else replace(task, stages=(lambda carried: carried,))
        for task in pipeline.tasks
    )
    return replace(pipeline, tasks=tasks)


def build_that_retries_soon(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """A DNN that was disabled in its process is retried there after a second."""
    health.RETRY_DELAYS_S = (1.0,)
    return build(config, progress)
