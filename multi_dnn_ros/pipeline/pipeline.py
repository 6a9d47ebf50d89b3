"""The result of the configuration: what the engine runs.

Separate from :mod:`multi_dnn_ros.pipeline.build`, because its imports take longer than PyTorch's and other builders
do not need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.settings.schema import DnnConfig

if TYPE_CHECKING:
    import torch

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


def batch_error(dnn: Dnn, settings: DnnConfig, reason: str) -> ConfigError:
    return ConfigError(
        f"parameter dnn.{dnn.name}.max_batch is {settings.max_batch}, but {settings.model} takes one image at a time: "
        f"{reason}; allowed: 1"
    )
