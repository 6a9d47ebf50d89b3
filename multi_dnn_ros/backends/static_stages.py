"""The inputs and outputs of several images together, and the call that runs all stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from multi_dnn_ros.backends import Stage, StaticStage, Tensors

if TYPE_CHECKING:
    import torch


def single_launches(chains: Mapping[int, Sequence[Stage]]) -> dict[int, Stage]:
    """By number of images, the stage that runs all stages of the DNN in one launch, where the backend prepared one.

    chains: prepared stages by number of images. The backend leaves that stage in the attribute `single_launch` of the
    first one. It reads the inputs of the first stage and returns the outputs of the last one. It saves the time between
    launches when no other frame may run in between. It must not run at the same time as the stages.
    """
    found = {size: getattr(stages[0], "single_launch", None) for size, stages in chains.items()}
    return {size: stage for size, stage in found.items() if stage is not None}


def streams_of(stage: Stage) -> int:
    """Number of streams on which the branches of a prepared stage run at the same time."""
    return int(getattr(stage, "streams", 1))


def stack_inputs(images: Sequence[Tensors], first: Stage) -> Tensors:
    """Concatenate inputs for one image each, in the memory that `first` reads if it is a static stage.

    The previous launches of the stages must have finished. Without memory of the right shape, new tensors are returned.
    """
    if isinstance(images[0][0], np.ndarray):
        return tuple(map(np.concatenate, zip(*images, strict=True)))
    memory = first.inputs if isinstance(first, StaticStage) else (None,) * len(images[0])
    return tuple(
        _concatenate(tensors, target) for tensors, target in zip(zip(*images, strict=True), memory, strict=True)
    )


def split_rows(outputs: Tensors, images: int) -> list[Tensors]:
    """The outputs of each of `images` images, as views; those of padding behind them are left out.

    Of a single image the outputs may have any shape.
    """
    if images == 1:
        return [outputs]
    # One split is several times faster than slicing each row.
    rows = (np.split(each, len(each)) if isinstance(each, np.ndarray) else each.split(1) for each in outputs)
    return list(zip(*rows, strict=True))[:images]


def copy_to(targets: Tensors, tensors: Tensors) -> None:
    """Copy tensors to fixed memory, on the current stream, except those that are there already."""
    for target, tensor in zip(targets, tensors, strict=True):
        if tensor is not target:
            target.copy_(tensor, non_blocking=True)


def _concatenate(tensors: Tensors, target: torch.Tensor | None) -> torch.Tensor:
    import torch

    if target is None or target.shape != (len(tensors), *tensors[0].shape[1:]):
        return torch.cat(tensors)
    torch.cat(tensors, out=target)
    return target
