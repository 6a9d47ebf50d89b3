"""Networks from files that state only the shapes of their inputs and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from multi_dnn_ros.models.description import Description
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError

#: Maximum side of an input image, pixels; the same as for the parameters input_width and input_height.
_MAX_SIDE = 8192


def source_of_file(
    path: Path,
    module: nn.Module,
    inputs: Sequence[tuple[Any, ...]],
    outputs: Sequence[tuple[int, ...]] | None,
    description: Description | None = None,
) -> Source:
    """The source of a network with inputs and, if known, outputs of these shapes, in which 0 is a free axis.

    Raises ModelError unless the network takes one image.
    """
    size = _image_size(path, inputs)
    labels = description.labels if description is not None else ()
    preprocess: dict[str, Any] = {**description.preprocess} if description is not None else {}
    decoder = description.decoder if description is not None else ""
    return Source(
        module, size, decoder, labels, preprocess, fixed_size=size is not None, description=description,
        classes=len(labels), outputs=None if outputs is None else tuple(outputs),
        original=description.model if description is not None and description.plan else "",
    )  # fmt: skip


def _image_size(path: Path, shapes: Sequence[tuple[Any, ...]]) -> tuple[int, int] | None:
    """(width, height) of the only input, an image; None: free. 0 in `shapes` is a free axis."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, 0) or shapes[0][0] not in (1, 0):
        raise ModelError(f"{path}: takes inputs of shapes {list(shapes)}; allowed: one image (1, 3, height, width)")
    _, _, height, width = shapes[0]
    if not isinstance(height, int) or not isinstance(width, int) or not height or not width:
        return None
    if max(width, height) > _MAX_SIDE:
        raise ModelError(f"{path}: takes images of {width} x {height}; allowed: at most {_MAX_SIDE} x {_MAX_SIDE}")
    return width, height
