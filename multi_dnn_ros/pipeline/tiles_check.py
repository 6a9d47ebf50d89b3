"""Checks that a network with parameter `tiles` takes several images at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.settings.schema import DnnConfig


def check_tiles(dnn: Dnn, settings: DnnConfig) -> None:
    """Raise ConfigError unless the network gives the same outputs for all tiles of an image together as for each one
    alone.
    """
    if dnn.view.tiles == 1:
        return
    (images,) = noise_like(dnn.example_inputs())
    try:
        with torch.inference_mode():
            together = _tensors(dnn.module(images))
            for number in range(len(images)):
                alone = _tensors(dnn.module(images[number : number + 1]))
                rows = tuple(tensor[number : number + 1] for tensor in together)
                check_agreement(rows, alone, PRECISIONS["fp32"].tolerance(torch.device("cpu")))
    except Exception as error:  # whatever the network raises on a batch
        raise ConfigError(
            f"parameter dnn.{dnn.name}.tiles is '{settings.tiles}', but {settings.model} takes one image at a time: "
            f"with {len(images)} images, {summarize_error(error)}; allowed: 1x1, or a network with a free batch size"
        ) from None


def _tensors(outputs: Any) -> tuple[torch.Tensor, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
