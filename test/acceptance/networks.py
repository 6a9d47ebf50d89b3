"""Small networks whose results can be computed by hand, in the formats that the package reads.

Each looks at the cells of 16x16 pixels of its input of 64x64 pixels: the score of class red (green, blue) in a cell is
the largest value of that channel, 0..1, and the box is 12x12 pixels in the middle of the cell. Outputs have one row for
each cell at strides 8, 16 and 32, as those of real detectors; the rows of strides 8 and 32 have scores of 0.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from vision_msgs.msg import Detection2DArray

LABELS = ["red", "green", "blue"]
_SIDE = 64
_CELL = 16
_STRIDES = (8, _CELL, 32)
#: Side of the images in pixels: twice that of the input.
_IMAGE = 2 * _SIDE
#: By family (docs/models.md): the names of the outputs.
FAMILIES = {
    "yolo": ["output0"],  # (1, 4 + classes, N): centre and size in input pixels, scores
    "postprocessed": ["labels", "boxes", "scores"],  # (1, N), (1, N, 4) corners in input pixels, (1, N)
    "detr_sigmoid": ["logits", "pred_boxes"],  # (1, N, classes), (1, N, 4) centre and size as shares of the input
}


@dataclass(frozen=True)
class Block:
    """A cell of one colour in an image: the colour's channel has the value `level`, the others are 0."""

    row: int
    column: int
    color: int
    level: int = 255


def block_image(*blocks: Block) -> np.ndarray:
    """An RGB image, uint8, black except for the blocks."""
    image = np.zeros((_IMAGE, _IMAGE, 3), np.uint8)
    side = _IMAGE // (_SIDE // _CELL)
    for block in blocks:
        rows = slice(block.row * side, (block.row + 1) * side)
        image[rows, block.column * side : (block.column + 1) * side, block.color] = block.level
    return image


def block_boxes(*blocks: Block) -> list[tuple[str, float, float, float, float, float]]:
    """What the networks find in `block_image`: class number, score, centre x and y, width and height in pixels."""
    side, size = _CELL * _IMAGE / _SIDE, 12 * _IMAGE / _SIDE
    return [
        (str(one.color), one.level / 255, (one.column + 0.5) * side, (one.row + 0.5) * side, size, size)
        for one in blocks
    ]


def found_boxes(message: Detection2DArray) -> Any:
    """The boxes of a result as `block_boxes` gives them, the highest score first; equal within rounding."""
    boxes = []
    for detection in message.detections:
        (result,) = detection.results
        box, centre = detection.bbox, detection.bbox.center.position
        numbers = (result.hypothesis.score, centre.x, centre.y, box.size_x, box.size_y)
        boxes.append((result.hypothesis.class_id, *(pytest.approx(number, abs=1e-3) for number in numbers)))
    return boxes


class _Blocks(nn.Module):
    def __init__(self, family: str) -> None:
        super().__init__()
        self.family = family
        self.colors = nn.Conv2d(3, 3, 1, bias=False)  # a weight, as every network has
        nn.init.dirac_(self.colors.weight)
        centres = [
            ((column + 0.5) * stride, (row + 0.5) * stride)
            for stride in _STRIDES
            for row in range(_SIDE // stride)
            for column in range(_SIDE // stride)
        ]
        self.boxes = nn.Buffer(nn.functional.pad(torch.tensor(centres), (0, 2), value=12.0)[None])
        counts = [float(stride == _CELL) for stride in _STRIDES for _ in range((_SIDE // stride) ** 2)]
        self.counts = nn.Buffer(torch.tensor(counts)[None, :, None])

    def forward(self, images: Tensor) -> Any:
        colors = self.colors(images)
        levels = [nn.functional.max_pool2d(colors, stride).reshape(1, 3, (_SIDE // stride) ** 2) for stride in _STRIDES]
        scores = torch.cat(levels, 2).transpose(1, 2) * self.counts
        if self.family == "yolo":
            return torch.cat([self.boxes, scores], 2).transpose(1, 2)
        if self.family == "postprocessed":
            middle, half = self.boxes[..., :2], self.boxes[..., 2:] / 2
            best, labels = scores.max(2)
            return labels, torch.cat([middle - half, middle + half], 2), best
        probabilities = scores.clamp(1e-4, 1 - 1e-4)
        return (probabilities / (1 - probabilities)).log(), self.boxes / _SIDE


def write_onnx(family: str, path: Path) -> Path:
    """Write a network of one of the FAMILIES as ONNX."""
    _export(_Blocks(family), _SIDE, path, FAMILIES[family])
    return path


def _export(network: nn.Module, side: int, path: Path, outputs: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is called deprecated
        image = (torch.zeros(1, 3, side, side),)
        torch.onnx.export(network.eval(), image, path, dynamo=False, opset_version=17, output_names=outputs)


def write_pt2(path: Path) -> Path:
    """Write the network of family yolo as torch.export saves it."""
    torch.export.save(torch.export.export(_Blocks("yolo").eval(), (torch.zeros(1, 3, _SIDE, _SIDE),)), path)
    return path


def random_detector() -> nn.Module:
    """torchvision's SSDlite with random weights that give some clear boxes of several classes."""
    torch.manual_seed(0)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    for layer in model.modules():  # with the initial statistics of batch norms, outputs are constant
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        squares = nn.functional.interpolate(torch.rand(8, 3, 10, 10), size=320) * 2 - 1
        model.train().head(list(model.backbone(squares).values()))
        for layer in model.head.classification_head.module_list:
            layer[-1].weight.mul_(4)
            layer[-1].bias.view(-1, 91)[:, 0] += 12  # most is background
    return model.eval()


def write_slow_network(path: Path) -> Path:
    """Write an .onnx file of a detector that takes a tenth of a second per frame on one core, and finds nothing."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, 2, 1), *(nn.Conv2d(64, 64, 3, 1, 1) for _ in range(6)), nn.Conv2d(64, 5, 3, 4, 1)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0, 0.01)
        nn.init.zeros_(layer.bias)
    _export(nn.Sequential(*layers, nn.Flatten(2)), 256, path, ["output0"])
    return path
