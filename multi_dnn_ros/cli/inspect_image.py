"""One image through a DNN for ``multi-dnn inspect``: what it finds, and a picture."""

from __future__ import annotations

import reprlib
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils import _pytree as pytree

from multi_dnn_ros.camera.sources import ImageSource
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.overlay_files import save_picture
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, Layer
from multi_dnn_ros.vision.results import NO_CLASS, Lanes, Mask, boxes_of, result_name, results_by_name

#: Arrays with more values are shown as type and shape.
_MAX_VALUES = 4


def draw_image(dnn: Dnn, image: Path, output: Path) -> dict[str, object]:
    """Run the image through the network, layer by layer in float32, and write the picture with all results.

    Returns `file`, the picture, and `found`, a line for each object, lane or class that was found. Raises CommandError.
    """
    if not image.is_file():
        raise CommandError(f"--image is {image}: no such file")
    (source,) = ImageSource(image).items()
    pixels = source.image
    with torch.inference_mode():
        outputs = pytree.tree_leaves(dnn.module(*dnn.inputs(torch.from_numpy(pixels))))
    result = dnn.results([part for part in outputs if isinstance(part, torch.Tensor)], pixels.shape[:2])
    found = results_by_name(dnn.name, result)
    kinds = {result_name(dnn.name, name): output.result_kind for name, output in dnn.outputs.items()}
    layers = [Layer(name, RESULT_KINDS.get(kinds[name]), part) for name, part in found.items()]
    save_picture(output, draw(pixels, layers))
    several = len(found) > 1
    lines = [f"{name}: {line}" if several else line for name, part in found.items() for line in _found(part)]
    return {"file": str(output), "found": lines}


def _found(result: object) -> list[str]:
    """A line for each object, lane or class that the model found."""
    if (boxes := boxes_of(result)) is not None:
        entries = zip(boxes.boxes, boxes.scores, boxes.class_ids, strict=True)
        return [
            f"{boxes.labels[number]} {score:.2f} at {', '.join(f'{side:.0f}' for side in box)}"
            for box, score, number in entries
        ]
    if isinstance(result, Lanes):
        return [f"lane {lane.number}, score {lane.score:.2f}, {len(lane.points)} points" for lane in result.lanes]
    if isinstance(result, Mask):
        ids, counts = np.unique(result.class_ids, return_counts=True)
        return [
            f"{'no class' if number == NO_CLASS else result.labels[number]}: {count / counts.sum():.1%} of the pixels"
            for number, count in zip(ids.tolist(), counts.tolist(), strict=True)
        ]
    return [_summary(result)]


def _summary(result: object) -> str:
    """A result of another package's kind in one line: the fields of a dataclass, with the shapes of arrays."""
    if not is_dataclass(result):
        return _short(result)
    values = ", ".join(f"{field.name} {_short(getattr(result, field.name))}" for field in fields(result))
    return f"{type(result).__name__}: {values}"


def _short(value: object) -> str:
    if isinstance(value, np.ndarray) and value.size > _MAX_VALUES:
        return f"{value.dtype} {value.shape}"
    return " ".join(reprlib.repr(value).split())
