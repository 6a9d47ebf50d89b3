"""Finds the DNNs that share the preprocessing of a frame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.dnn import Dnn

if TYPE_CHECKING:
    import torch


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
