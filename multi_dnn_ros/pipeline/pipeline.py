"""The result of the configuration: what the engine runs.

Separate from :mod:`multi_dnn_ros.pipeline.build`, because its imports take longer than PyTorch's and other builders
do not need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from multi_dnn_ros.engine.task import DnnTask

if TYPE_CHECKING:
    from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder
    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.planning.predictor import Predictor


@dataclass(frozen=True)
class Pipeline:
    """Everything that the configuration builds.

    dnns: by name, for labels and thresholds. predictor: predicts layer times, from parameter `predictor`; None: not
    set. jpeg_decoder: decodes JPEG files on the device; set when the DNNs are configured. None: they are decoded on the
    CPU.
    """

    device: torch.device
    workers: int
    tasks: tuple[DnnTask, ...]
    dnns: Mapping[str, Dnn]
    predictor: Predictor | None = None
    jpeg_decoder: JpegDecoder | None = None

    @property
    def servers(self) -> int:
        """Number of frames computed at the same time: one per worker on a CPU; one per DNN, on its own stream, on a
        GPU.
        """
        return self.workers if self.device.type == "cpu" else len(self.tasks)
