"""What configuring makes, and the engine runs. Apart from :mod:`multi_dnn_ros.pipeline.build`, whose imports take a
second more than PyTorch's: a pipeline that is made otherwise does not need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from multi_dnn_ros.engine.task import DnnTask

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.planning.predictor import Predictor


@dataclass(frozen=True)
class Pipeline:
    """Everything that is made when configuring. dnns: by name, for labels and thresholds.

    predictor: of layer times, that of parameter `predictor`; None: none.
    """

    device: torch.device
    workers: int
    tasks: tuple[DnnTask, ...]
    dnns: Mapping[str, Dnn]
    predictor: Predictor | None = None

    @property
    def servers(self) -> int:
        """Frames that are computed at once: one a worker on a CPU; on a GPU one a DNN, each on its own stream."""
        return self.workers if self.device.type == "cpu" else len(self.tasks)
