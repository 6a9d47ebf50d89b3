"""Measures how far the results of models agree with those of their references: the table of docs/models.md.

    python test/models/agreement/measure.py --weights DIR --images DIR --output results/models.json

Both get the same input, images preprocessed by this package, so that the figures compare reading the file, running the
network and decoding its outputs. Boxes: average precision (COCO) of ours at IoU 0.9, with the reference's as ground
truth. Lines: share of the reference's lines that have one of ours within 1 pixel, both ways. Masks: intersection over
union of the line pixels before they are grouped into lines. --weights: folder with the files that public_weights.py
names. A row that cannot be run is listed with the reason. Some rows need ultralytics or transformers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
import tempfile
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent))
import exported_references
import layout_rows
import public_weights
from rows import Model, Row

from reference_decoding import Options, detections  # isort: skip

from multi_dnn_ros.common.reporting import provenance, write_json
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig

#: Candidates per image that reach the score threshold, before suppression.
_CANDIDATES = 60
_IOU = 0.5
_MAX_DETECTIONS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    args = parser.parse_args()
    images = [cv2.imread(str(file))[..., ::-1].copy() for file in sorted(args.images.glob("*.jpg"))]
    rows = [*public_weights.ROWS, *exported_references.ROWS, *layout_rows.ROWS]
    torch.set_num_threads(1)
    measured, failed = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for row in tqdm([row for row in rows if not args.only or row.name in args.only], unit="model"):
            try:
                measured.append(measure(row, row.prepare(args.weights, Path(scratch)), images))
                print(measured[-1], file=sys.stderr)
            except Exception as error:  # whatever a package or a file raises
                traceback.print_exc()
                failed.append({"name": row.name, "error": _error_text(error, scratch)})
                print(failed[-1], file=sys.stderr)
    origin = provenance()
    origin["command"] = shlex.join(["python", "test/models/agreement/measure.py", *sys.argv[1:]])
    for package in ("ultralytics", "transformers", "onnxruntime"):
        with contextlib.suppress(PackageNotFoundError):
            origin["versions"][package] = version(package)
    write_json(args.output, {**origin, "images": len(images), "rows": measured, "failed": failed})


def _error_text(error: Exception, scratch: str) -> str:
    """The first line of an error, without the name of the temporary folder."""
    first = (str(error).splitlines() or [""])[0].replace(f"{scratch}/", "")
    return f"{type(error).__name__}: {first[:300]}"


def measure(row: Row, model: Model, images: list[np.ndarray]) -> dict[str, Any]:
    """The row of the table."""
    begin = time.perf_counter()
    config = DnnConfig.model_validate({"role": "object", "model": model.model, **model.parameters})
    if model.lines is None and model.mask is None:
        config = config.model_copy(update={"iou_threshold": _IOU, "max_detections": _MAX_DETECTIONS})
    dnn = load_dnn("dnn", config)
    compare = _boxes if model.boxes is not None else _lines if model.lines is not None else _masks
    header = onnx.load(model.model, load_external_data=False)
    return {
        "name": row.name, "source": row.source, "licence": row.licence,
        "weights": "trained" if row.trained else "random", "reference": row.reference,
        "opset": max(entry.version for entry in header.opset_import if entry.domain in ("", "ai.onnx")),
        "decoder": type(dnn.decoder).name, "file": Path(model.model).name,
        "parameters": {key: value for key, value in model.parameters.items() if key != "role"},
        "role": config.role, "input": [dnn.preprocess.width, dnn.preprocess.height],
        **compare(dnn, model, images), "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


def _run(dnn: Dnn, image: np.ndarray) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The input that the preprocessing makes, and the raw outputs of the converted network."""
    with torch.inference_mode():
        (inputs,) = dnn.preprocess(torch.from_numpy(image))
        return inputs, [leaf for leaf in pytree.tree_leaves(dnn.module(inputs)) if isinstance(leaf, torch.Tensor)]


def _boxes(dnn: Dnn, model: Model, images: list[np.ndarray]) -> dict[str, Any]:
    assert model.boxes is not None
    ran = [_run(dnn, image) for image in images]
    candidates = [list(model.boxes(np.array(inputs.numpy()))) for inputs, _ in ran]
    scores = sorted((candidate[4] for some in candidates for candidate in some), reverse=True)
    # A reference that suppresses boxes itself has fewer results, of which only the better half is used.
    available = len(scores) if model.suppress else len(scores) // 2
    threshold = _threshold(scores, min(_CANDIDATES * len(images), available))
    dnn.decoder.score_threshold = threshold
    options = Options(threshold=threshold, iou=_IOU, most=_MAX_DETECTIONS)
    truth, ours = [], []
    for image, (_, outputs), some in zip(images, ran, candidates, strict=True):
        size = image.shape[:2]
        truth.append(detections(some, dnn.preprocess, size, options, model.suppress))
        found = dnn.decoder(outputs, size)
        columns = found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist()
        ours.append([(*box, score, number) for box, score, number in zip(*columns, strict=True)])
    return {
        "measure": "mAP at IoU 0.9", "agreement": average_precision(ours, truth, 0.9), "threshold": threshold,
        "reference_results": sum(map(len, truth)), "our_results": sum(map(len, ours)),
    }  # fmt: skip


def _threshold(scores: list[float], count: int) -> float:
    """A threshold that about `count` scores reach, in the widest gap there, so that rounding decides on no result.

    scores: best first.
    """
    first = min(int(0.7 * count), max(len(scores) - 2, 0))
    part = np.array(scores[first : int(1.3 * count) + 2])
    if len(part) < 2:
        return float(part[-1])
    widest = int((part[:-1] - part[1:]).argmax())
    return float((part[widest] + part[widest + 1]) / 2)


def average_precision(ours: list[list[Any]], truth: list[list[Any]], iou: float) -> float:
    """COCO's average precision at one IoU, mean over the classes; rows x1, y1, x2, y2, score, class of each image."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rows(every: list[list[Any]]) -> list[dict[str, Any]]:
        return [
            {"id": 0, "image_id": image, "category_id": int(row[5]), "score": float(row[4]), "iscrowd": 0,
             "bbox": [row[0], row[1], row[2] - row[0], row[3] - row[1]], "area": (row[2] - row[0]) * (row[3] - row[1])}
            for image, some in enumerate(every, 1)
            for row in some
        ]  # fmt: skip

    with contextlib.redirect_stdout(io.StringIO()):
        sets = []
        for found in (rows(truth), rows(ours)):
            data = COCO()
            data.dataset = {
                "images": [{"id": image} for image in range(1, len(truth) + 1)],
                "categories": [{"id": number} for number in sorted({row["category_id"] for row in rows(truth)})],
                "annotations": [{**row, "id": number} for number, row in enumerate(found, 1)],
            }
            data.createIndex()
            sets.append(data)
        evaluation = COCOeval(*sets, "bbox")
        evaluation.params.iouThrs = np.array([iou])
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [_MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"]
    return round(float(precision[precision > -1].mean()), 4)


def _lines(dnn: Dnn, model: Model, images: list[np.ndarray]) -> dict[str, Any]:
    assert model.lines is not None
    matched = found = expected = 0
    worst = 0.0
    dnn.decoder.score_threshold = 0.4
    for image in images:
        inputs, outputs = _run(dnn, image)
        ours = [lane.points for lane in dnn.decoder(outputs, image.shape[:2]).lanes]
        theirs = [np.array(points) for points, _ in model.lines(np.array(inputs.numpy()), image.shape[:2], 0.4)]
        found, expected = found + len(ours), expected + len(theirs)
        for line in theirs:
            off = [float(np.abs(line - own).max()) for own in ours if own.shape == line.shape]
            if off and min(off) <= 1.0:
                matched += 1
                worst = max(worst, min(off))
    share = 2 * matched / (found + expected) if found + expected else 0.0
    return {"measure": "lines within 1 px", "agreement": round(share, 4), "largest_px": round(worst, 4),
            "reference_results": expected, "our_results": found}  # fmt: skip


def _masks(dnn: Dnn, model: Model, images: list[np.ndarray]) -> dict[str, Any]:
    assert model.mask is not None
    both = either = theirs = 0
    for image in images:
        inputs, outputs = _run(dnn, image)
        decoder: Any = dnn.decoder
        maps = [output for output in outputs if output.ndim == 4]
        ours = (decoder.lane_logits(maps[-1][0]) > 0).numpy()
        mask = model.mask(np.array(inputs.numpy()))
        both, either = both + int((ours & mask).sum()), either + int((ours | mask).sum())
        theirs += int(mask.sum())
    return {"measure": "IoU of line pixels", "agreement": round(both / max(either, 1), 5), "reference_results": theirs}


if __name__ == "__main__":
    main()
