"""Scores of detections and lane lines against exact ground truth."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.vision.results import Detections

#: Width to which masks are resized before the comparison, pixels.
LANE_WIDTH = 320


@dataclass(frozen=True)
class Truth:
    """Ground truth of an image. boxes: (N, 4) float32 x1, y1, x2, y2. class_ids: (N,) int64. crowds: (N,) bool, whether
    a box holds several objects (COCO's `iscrowd`); None: no box does.
    """

    boxes: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int64]
    crowds: npt.NDArray[np.bool_] | None = None

    def among(self, names: Sequence[str], labels: Sequence[str]) -> Truth:
        """The boxes whose class is in `labels`, with class numbers of `labels`. names: the classes that `class_ids`
        refers to.
        """
        numbers = np.array([labels.index(name) if name in labels else -1 for name in names], np.int64)
        mapped = numbers[self.class_ids]
        shown = mapped >= 0
        return Truth(self.boxes[shown], mapped[shown], None if self.crowds is None else self.crowds[shown])


class NoTruth(ValueError):
    """No image has a true box, so average precision is undefined."""


def score_detections(results: Iterable[tuple[Detections, Truth]], labels: Sequence[str]) -> dict[str, float]:
    """Scores of result kind `detections`: COCO's average precision by pycocotools, at most 100 boxes per image.

    results: one per image. A detection on a crowd of its class does not count (COCO's rule). Returns "map50" (IoU 0.5,
    mean over the classes that occur), "map50_<label>" for each of them, and "map" (IoU 0.5 to 0.95). Raises NoTruth if
    there is no true box.
    """
    images = list(results)
    evaluation = _matched(images, len(labels))
    with contextlib.redirect_stdout(io.StringIO()):  # suppress pycocotools' progress output
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (IoU, recall, class): all areas, 100 boxes; -1: no truth
    present = [k for k in range(len(labels)) if (precision[0, :, k] > -1).any()]
    if not present:
        raise NoTruth(f"no true box in {len(images)} images: average precision is undefined")
    by_class = {labels[k]: float(precision[0, :, k].mean()) for k in present}
    return {
        "map50": float(np.mean(list(by_class.values()))),
        **{f"map50_{label}": value for label, value in by_class.items()},
        "map": float(precision[:, :, present].mean()),
    }


def box_points(
    results: Sequence[tuple[Detections, Truth]], classes: int, thresholds: Sequence[float]
) -> list[dict[str, float | None]]:
    """Precision, recall and false detections per image of a detector at each score threshold, over all classes.

    results: one per image. classes: number of classes. Detections are matched with true boxes as for
    mAP@0.5; those on a crowd do not count. A figure without a denominator is None.
    """
    evaluation = _matched(results, classes)
    of_all_sizes = [each for each in evaluation.evalImgs if each and each["aRng"] == evaluation.params.areaRng[0]]
    total = int(sum((each["gtIgnore"] == 0).sum() for each in of_all_sizes))
    rows = [np.stack([each["dtScores"], each["dtMatches"][0] > 0, each["dtIgnore"][0]]) for each in of_all_sizes]
    scores, correct, ignored = np.concatenate([np.zeros((3, 0)), *rows], axis=1)
    points = []
    for threshold in thresholds:
        shown = (scores >= threshold) & (ignored == 0)
        count, right = int(shown.sum()), int(correct[shown].sum())
        points.append({
            "threshold": threshold,
            "precision": right / count if count else None,
            "recall": right / total if total else None,
            "false_per_image": (count - right) / len(results),
        })  # fmt: skip
    return points


def _matched(images: Sequence[tuple[Detections, Truth]], classes: int) -> Any:
    """pycocotools' evaluation with the matches of detections and true boxes."""
    with optional("average precision"):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

    true: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image, (prediction, truth) in enumerate(images, 1):
        crowds = np.zeros(len(truth.boxes), bool) if truth.crowds is None else truth.crowds
        for rows, name, of, values in (
            (true, "iscrowd", truth, crowds),
            (found, "score", prediction, prediction.scores),
        ):
            for box, k, value in zip(of.boxes.tolist(), of.class_ids.tolist(), values.tolist(), strict=True):
                (x, y), (width, height) = box[:2], (box[2] - box[0], box[3] - box[1])
                place = {"image_id": image, "category_id": k, "bbox": [x, y, width, height], "area": width * height}
                rows.append({"id": len(rows) + 1, "iscrowd": 0, **place, name: value})
    with contextlib.redirect_stdout(io.StringIO()):
        reference, results = COCO(), COCO()
        for data, rows in ((reference, true), (results, found)):
            data.dataset = {
                "images": [{"id": image} for image in range(1, len(images) + 1)],
                "categories": [{"id": k} for k in range(classes)],
                "annotations": rows,
            }
            data.createIndex()
        evaluation = COCOeval(reference, results, "bbox")
        evaluation.evaluate()
    return evaluation


@dataclass
class LaneScore:
    """Pixel counts over any number of images: correct among predicted, found among true."""

    correct: int = 0
    predicted: int = 0
    found: int = 0
    true: int = 0

    def add(self, predicted: npt.NDArray[Any], true: npt.NDArray[Any], tolerance_px: float = 3.0) -> None:
        """predicted, true: (H, W) of one camera's image in any size, nonzero = lane; compared at width LANE_WIDTH.

        A predicted pixel is correct if a true one lies within `tolerance_px`; a true pixel is found if a predicted one
        does (Euclidean distance at width LANE_WIDTH).
        """
        height = max(1, round(true.shape[0] * LANE_WIDTH / true.shape[1]))
        a, b = _at_width(predicted, height), _at_width(true, height)
        self.correct += int((a & _dilate(b, tolerance_px)).sum())
        self.predicted += int(a.sum())
        self.found += int((b & _dilate(a, tolerance_px)).sum())
        self.true += int(b.sum())

    def scores(self) -> dict[str, float]:
        """Precision, recall and f1, their harmonic mean, 0..1; all 1 if there are neither true nor predicted pixels."""
        precision = self.correct / self.predicted if self.predicted else float(self.true == 0)
        recall = self.found / self.true if self.true else float(self.predicted == 0)
        total = precision + recall
        return {"f1": 2 * precision * recall / total if total else 0.0, "precision": precision, "recall": recall}


def score_lanes(results: Iterable[tuple[Any, Any]], labels: Sequence[str]) -> dict[str, float]:
    """Scores of result kind `lanes`. results: (Lanes, true mask (H, W), nonzero = lane) per image. labels: not used."""
    score = LaneScore()
    for lanes, true in results:
        score.add(lanes.mask, true)
    return score.scores()


def _at_width(mask: npt.NDArray[Any], height: int) -> npt.NDArray[np.bool_]:
    """Resize to width LANE_WIDTH; a pixel is lane if two fifths of it are, so that thin distant lines remain."""
    area = (mask > 0).astype(np.float32)
    if area.shape != (height, LANE_WIDTH):
        area = np.asarray(cv2.resize(area, (LANE_WIDTH, height), interpolation=cv2.INTER_AREA), dtype=np.float32)
    return np.asarray(area >= 0.4)


def _dilate(mask: npt.NDArray[np.bool_], tolerance_px: float) -> npt.NDArray[np.bool_]:
    if not mask.any():
        return np.zeros_like(mask)
    away = cv2.distanceTransform((~mask).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.asarray(away <= tolerance_px)
