"""Networks whose weights were not available: one-layer networks with the same outputs, compared with their formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_export import export_network
from public_weights import runner
from rows import Model, Row
from torch import Tensor, nn

import reference_lanes  # isort: skip
from reference_decoding import Candidate, Case, detections, read_nanodet_plus, read_yolov5  # isort: skip  # noqa: F401

_FORMULA = "ONNX Runtime, its formula restated"


class Layout(nn.Module):
    """Outputs of given shapes, each a random mixture of a few averages of the image and a random constant."""

    def __init__(self, makers: Sequence[Callable[[Tensor], Tensor]], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.makers, self.shapes = list(makers), list(shapes)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(48, int(np.prod(shape)), generator=generator)) for shape in shapes
        )
        self.constants = nn.ParameterList(
            nn.Parameter(torch.randn(int(np.prod(shape)), generator=generator)) for shape in shapes
        )

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        seen = nn.functional.adaptive_avg_pool2d(image, 4).reshape(1, 48)
        return tuple(
            make((seen @ weight * 0.2 + constant).reshape(shape))
            for make, shape, weight, constant in zip(
                self.makers, self.shapes, self.weights, self.constants, strict=True
            )
        )


def _export(name: str, size: tuple[int, int], layout: Layout, scratch: Path) -> Path:
    file = scratch / f"{name}.onnx"
    export_network(layout.eval(), (torch.zeros(1, 3, size[1], size[0]),), file)
    return file


def identity(values: Tensor) -> Tensor:
    return values


def _ufldv2(rows: int, columns: int, cells: int, size: tuple[int, int], anchors: list[float], seen: float) -> Any:
    def prepare(weights: Path, scratch: Path) -> Model:
        shapes = [(1, cells, rows, 4), (1, 100, columns, 4), (1, 2, rows, 4), (1, 2, columns, 4)]
        file = _export(f"ufldv2_{rows}", size, Layout([identity] * 4, shapes), scratch)
        run = runner(file)

        def lines(image: np.ndarray, source: tuple[int, int], threshold: float) -> list[Any]:
            return reference_lanes.ufldv2(run(image), source, threshold, row_anchors=anchors, seen=seen)

        return Model(str(file), {"role": "lane"}, lines=lines)

    return prepare


def _clrnet(weights: Path, scratch: Path) -> Model:
    fraction = torch.linspace(0, 1, 72)

    def candidates(values: Tensor) -> Tensor:
        start = torch.sigmoid(values[..., 2:3] - 3) * 0.5
        columns = torch.sigmoid(values[..., 3:4]) + values[..., 4:5] * 0.2 * fraction + values[..., 6:] * 0.002
        return torch.cat([values[..., :2], start, values[..., 3:5], torch.sigmoid(values[..., 5:6]), columns], 2)

    file = _export("clrnet", (800, 320), Layout([candidates], [(1, 192, 78)]), scratch)
    run = runner(file)
    return Model(
        str(file), {"role": "lane", "max_detections": 4},
        lines=lambda image, source, threshold: reference_lanes.clrnet(run(image), source, threshold, 4),
    )  # fmt: skip


def _rows(values: Tensor) -> Tensor:
    """cx, cy, w, h in pixels of an input of 320 x 320, then probabilities."""
    return torch.cat([values[..., :2].sigmoid() * 320, values[..., 2:4].sigmoid() * 90, values[..., 4:].sigmoid()], 2)


_YOLOP_SHAPES = [(1, 6300, 6), (1, 2, 40, 40), (1, 2, 40, 40)]


def _yolop_export(scratch: Path) -> Path:
    def enlarged(values: Tensor) -> Tensor:
        return nn.functional.interpolate(values, size=(320, 320), mode="nearest").sigmoid()

    return _export("yolop", (320, 320), Layout([_rows, enlarged, enlarged], _YOLOP_SHAPES), scratch)


def _yolop(weights: Path, scratch: Path) -> Model:
    file = _yolop_export(scratch)
    run = runner(file)
    return Model(str(file), {"role": "object"}, lambda image: read_yolov5(run(image)[:1], (320, 320)))


def _yolop_lanes(weights: Path, scratch: Path) -> Model:
    file = _yolop_export(scratch)
    run = runner(file)
    return Model(str(file), {"role": "lane"}, mask=lambda image: run(image)[2][0].argmax(axis=0) == 1)


def _yolov5(weights: Path, scratch: Path) -> Model:
    file = _export("yolov5_anchors", (320, 320), Layout([_rows], [(1, 6300, 85)]), scratch)
    run = runner(file)
    return Model(str(file), {"labels": ["coco80"]}, lambda image: read_yolov5(run(image), (320, 320)))


def _nanodet_plus(weights: Path, scratch: Path) -> Model:
    def rows(values: Tensor) -> Tensor:
        return torch.cat([values[..., :80].sigmoid(), values[..., 80:]], 2)

    file = _export("nanodet_plus", (320, 320), Layout([rows], [(1, 2125, 112)]), scratch)
    run = runner(file)
    return Model(str(file), {"labels": ["coco80"]}, lambda image: read_nanodet_plus(run(image), (320, 320)))


def _segmentation(weights: Path, scratch: Path) -> Model:
    def enlarged(values: Tensor) -> Tensor:
        return nn.functional.interpolate(values, size=(192, 320), mode="bilinear", align_corners=False)

    file = _export("segmentation", (320, 192), Layout([enlarged], [(1, 5, 12, 20)]), scratch)
    run = runner(file)
    labels = ["road", "kerb", "car", "sky", "line"]
    return Model(
        str(file), {"role": "lane", "labels": labels, "keep": ["line"]},
        mask=lambda image: _share(run(image)[0][0], 4) >= 0.5,
    )  # fmt: skip


def _share(logits: np.ndarray, number: int) -> np.ndarray:
    """Probability of one class under a softmax."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=0))
    found: np.ndarray = powers[number] / powers.sum(axis=0)
    return found


_CULANE = _ufldv2(72, 81, 200, (1600, 320), list(np.linspace(0.42, 1, 72)), 0.6)
_TUSIMPLE = _ufldv2(56, 41, 100, (800, 320), list(np.linspace(160, 710, 56) / 720), 0.8)
ROWS = tuple(
    Row(name, source, licence, False, _FORMULA, prepare)
    for name, source, licence, prepare in (
        ("UFLDv2 CULane", "cfzd/Ultra-Fast-Lane-Detection-v2", "MIT", _CULANE),
        ("UFLDv2 TuSimple", "cfzd/Ultra-Fast-Lane-Detection-v2", "MIT", _TUSIMPLE),
        ("CLRNet", "Turoad/CLRNet", "Apache-2.0", _clrnet),
        ("YOLOP, boxes", "hustvl/YOLOP", "MIT", _yolop),
        ("YOLOP, lines", "hustvl/YOLOP", "MIT", _yolop_lanes),
        ("YOLOv5, v7", "ultralytics/yolov5", "AGPL-3.0", _yolov5),
        ("NanoDet-Plus", "RangiLyu/nanodet", "Apache-2.0", _nanodet_plus),
        ("segmentation of 5 classes", "no one model", "-", _segmentation),
    )
)
