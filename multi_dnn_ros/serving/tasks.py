"""What the engine runs: the task of a DNN that is an ONNX graph, what all tasks have in common, and the pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.backends import Shared, run_stages
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.settings.schema import DnnConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.planning.job_plan import JobPlan

#: Largest difference of a result in a batch, relative to the results' scale; int8 rounds differently.
_BATCH_TOLERANCE = 8e-2


@dataclass(frozen=True)
class Pipeline:
    """Everything that the configuration builds.

    dnns: by name, for labels and thresholds.
    """

    device: torch.device
    workers: int
    tasks: tuple[DnnTask, ...]
    dnns: Mapping[str, Dnn]

    @property
    def servers(self) -> int:
        """Number of frames computed at the same time: one per worker on a CPU; one per DNN, on its own stream, on a
        GPU.
        """
        return self.workers if self.device.type == "cpu" else len(self.tasks)


def plain_task(dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], preprocess: Callable[[Any], Any]) -> DnnTask:
    """The task without stages."""
    return DnnTask(
        name=dnn.name,
        cameras=cameras,
        preprocess=preprocess,
        stages=(),
        decode=dnn.results,
        priority=settings.priority,
        sms=settings.sms,
        deadline_ns=round(settings.deadline_ms * 1e6) or None,
        max_age_ns=round(settings.max_age_ms * 1e6) or None,
        batch_delay_ns=round(settings.batch_delay_ms * 1e6),
        min_size=dnn.view.min_size,
    )


def make_onnx_task(dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Any, plan: JobPlan) -> DnnTask:
    """The task of a DNN that is an ONNX graph, for all batch sizes that its parameters and cameras allow.

    backend: with a method `prepare_graph`. plan: how to cut the graph. Raises ConfigError.
    """
    shared, ready = Shared(), {}
    for size in range(1, min(settings.max_batch, len(cameras)) + 1):
        try:
            model = dnn.module.model if size == 1 else dnn.module.for_images(size)
            ready[size] = backend.prepare_graph(model, plan.jobs, plan.node_costs_s, plan.limit_s, shared)
            if size > 1:
                _compare_batch(ready[1], ready[size], size, (3, dnn.preprocess.height, dnn.preprocess.width))
        except Exception as error:
            if size == 1 or is_out_of_memory(error):
                raise
            if isinstance(error.__cause__, MissingExtra):
                raise ConfigError(str(error)) from None
            raise batch_error(dnn, settings, f"with {size} images, {summarize_error(error)}") from None
    return replace(
        plain_task(dnn, settings, cameras, dnn.array_inputs), arrays=True, stages=ready[1],
        batches={size: chain for size, chain in ready.items() if size > 1}, single_launch=single_launches(ready),
        remaining_ns=plan.remaining_ns(ready[1]),
    )  # fmt: skip


def _compare_batch(alone: Any, together: Any, images: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless each image of a batch of noise has the results that it has alone."""
    given = np.random.default_rng(0).standard_normal((images, *shape)).astype(np.float32)
    results = run_stages(together, (given,))
    for index, result in enumerate(results):
        if not result.ndim or len(result) != images:
            raise ValueError(f"output {index} of a batch of {images} images has shape {result.shape}")
    for row in range(images):
        for found, right in zip(results, run_stages(alone, (given[row : row + 1],)), strict=True):
            scale = 0.1 + float(np.abs(right.astype(np.float64)).max(initial=0.0))
            if np.abs(found[row : row + 1].astype(np.float64) - right).max(initial=0.0) > _BATCH_TOLERANCE * scale:
                raise ValueError(f"image {row + 1} of a batch of {images} has a different result when it runs alone")


def batch_error(dnn: Dnn, settings: DnnConfig, reason: str) -> ConfigError:
    """The error for a DNN that takes one image at a time."""
    return ConfigError(
        f"parameter dnn.{dnn.name}.max_batch is {settings.max_batch}, but {settings.model} takes one image at a time: "
        f"{reason}; allowed: 1"
    )


def share_inputs(tasks: Sequence[DnnTask], dnns: Mapping[str, Dnn], device: torch.device) -> tuple[DnnTask, ...]:
    """Return the tasks. On a CPU, those whose networks get equal inputs get the same `input_key`, except tasks with a
    stage that may write to its inputs.
    """
    sharing = {
        task.name: (task.arrays, dnns[task.name].input_key)
        for task in tasks
        if device.type == "cpu" and all(getattr(stage, "preserves_inputs", False) for stage in task.stages)
    }
    counts = Counter[Any](sharing.values())
    return tuple(
        replace(task, input_key=sharing[task.name]) if counts[sharing.get(task.name)] > 1 else task for task in tasks
    )
