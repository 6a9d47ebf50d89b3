"""Models with trained weights from public repositories, compared with ONNX Runtime and each reference's decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rows import Model, Row

from reference_decoding import (  # isort: skip
    Candidate,
    best_of,
    centered,
    read_nanodet,
    read_yolox,
    sigmoid,
)
from reference_queries import read_apart, read_ssd  # isort: skip

#: (outputs, (width, height) of the input) -> candidates in input pixels.
Read = Callable[[list[np.ndarray], tuple[int, int]], list[Candidate]]
_FORMULA = "ONNX Runtime, its formula restated"
_MOT = "Kazuhito00/MOT-Tracking-by-Detection-Pipeline"
_FACES = "Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB"


def runner(file: Path) -> Callable[[np.ndarray], list[np.ndarray]]:
    """A function that runs the unconverted file; a second input gets the size of the image."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    first, *more = (value.name for value in session.get_inputs())

    def run(image: np.ndarray) -> list[np.ndarray]:
        size = np.array([[image.shape[3], image.shape[2]]], np.int64)
        outputs: list[np.ndarray] = session.run(None, {first: image, **dict.fromkeys(more, size)})
        return outputs

    return run


def read_grid(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    """FastestDet."""
    width, height = size
    _, rows, columns = outputs[0][0].shape
    found = []
    for row in range(rows):
        for column in range(columns):
            cell = [float(value) for value in outputs[0][0][:, row, column]]
            best, number = best_of(cell[5:])
            x, y = (column + np.tanh(cell[1])) / columns * width, (row + np.tanh(cell[2])) / rows * height
            box = centered(x, y, sigmoid(cell[3]) * width, sigmoid(cell[4]) * height)
            found.append((*box, max(cell[0], 0.0) ** 0.6 * max(best, 0.0) ** 0.4, number))
    return found


def read_yolo(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    """YOLOv8, 11, 12."""
    rows = outputs[0][0].T
    best = rows[:, 4:].argmax(axis=1)
    return [
        (*centered(*map(float, row[:4])), float(row[4 + number]), int(number))
        for row, number in zip(rows, best, strict=True)
    ]


def read_any_nanodet(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    """NanoDet with outputs in any order, with or without a batch axis, recognized by their shapes."""
    flat = [output.reshape(-1, output.shape[-1]) for output in outputs]
    scores = sorted((rows for rows in flat if rows.shape[1] != 32), key=len, reverse=True)
    distances = sorted((rows for rows in flat if rows.shape[1] == 32), key=len, reverse=True)
    return read_nanodet([rows[None] for rows in (*scores, *distances)], size)


def read_batched(outputs: list[np.ndarray], size: tuple[int, int]) -> list[Candidate]:
    """Labels, boxes, scores, with or without a batch axis."""
    labels, boxes, scores = (
        output if output.ndim == expected else output[None] for output, expected in zip(outputs, (2, 3, 2), strict=True)
    )
    return read_apart([labels, boxes, scores], size)


def _detector(name: str, source: str, licence: str, read: Read, suppress: bool = True, **parameters: Any) -> Row:
    file = name + ".onnx"

    def prepare(weights: Path, scratch: Path) -> Model:
        run = runner(weights / file)

        def boxes(image: np.ndarray) -> Sequence[Candidate]:
            return read(run(image), (image.shape[3], image.shape[2]))

        return Model(str(weights / file), parameters, boxes, suppress)

    return Row(name, source, licence, True, _FORMULA, prepare)


def _twinlitenet(weights: Path, scratch: Path) -> Model:
    run = runner(weights / "twinlitenet.onnx")
    return Model(
        str(weights / "twinlitenet.onnx"), {"role": "lane"}, mask=lambda image: run(image)[1][0].argmax(axis=0) == 1
    )


ROWS = (
    _detector("yolox_nano_416x416", f"{_MOT}, Detector/yolox/model", "Apache-2.0", read_yolox, labels=["coco80"]),
    _detector("nanodet_m_320", f"{_MOT}, Detector/nanodet/model", "Apache-2.0", read_any_nanodet, labels=["coco80"]),
    _detector("nanodet_m_416", f"{_MOT}, Detector/nanodet/model", "Apache-2.0", read_any_nanodet, labels=["coco80"]),
    _detector("light_person", f"{_MOT}, Detector/light_person_detector/model/model.onnx", "Apache-2.0", read_yolox,
              labels=["person"]),
    _detector("nanodet", "hpc203/nanodet-opncv-dnn-cpp-python", "none stated; NanoDet: Apache-2.0", read_any_nanodet,
              labels=["coco80"]),
    _detector("nanodet_m", "hpc203/nanodet-opncv-dnn-cpp-python", "none stated; NanoDet: Apache-2.0",
              read_any_nanodet, labels=["coco80"]),
    _detector("FastestDet", "dog-qiuqiu/FastestDet, example/onnx-runtime", "BSD-3-Clause", read_grid,
              labels=["coco80"]),
    _detector("version-RFB-320", f"{_FACES}, models/onnx", "MIT", read_ssd, labels=["background", "face"]),
    _detector("version-RFB-640", f"{_FACES}, models/onnx", "MIT", read_ssd, labels=["background", "face"]),
    _detector("version-slim-320", f"{_FACES}, models/onnx", "MIT", read_ssd, labels=["background", "face"]),
    _detector("RFB-640-masked_face-v2", f"{_FACES}, masked_face/pretrained", "MIT", read_ssd,
              labels=["background", "face", "masked face"]),
    _detector("yolov8n_int8", "msharfeldin1991/deimv2", "AGPL-3.0 (Ultralytics)", read_yolo),
    _detector("deimv2_atto_coco_int8", "msharfeldin1991/deimv2", "Apache-2.0", read_batched, suppress=False,
              labels=["coco80"]),
    Row("twinlitenet", "harrylal/TwinLiteNet-onnxruntime, models/best.onnx", "MIT", True,
        "ONNX Runtime, larger of the two values of each pixel", _twinlitenet),
)  # fmt: skip
