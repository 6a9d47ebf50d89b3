"""The result of configuring: what the engine runs.

Apart from :mod:`multi_dnn_ros.pipeline.build`, whose imports take longer than PyTorch's: a pipeline that is built
otherwise does not need them.
"""

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
    """Everything that configuring builds. dnns: by name, for labels and thresholds.

    predictor: of layer times, that of parameter `predictor`; None: none.
    """

    device: torch.device
    workers: int
    tasks: tuple[DnnTask, ...]
    dnns: Mapping[str, Dnn]
    predictor: Predictor | None = None

    @property
    def servers(self) -> int:
        """Frames computed at the same time: one per worker on a CPU; on a GPU one per DNN, each on its own stream."""
        return self.workers if self.device.type == "cpu" else len(self.tasks)
