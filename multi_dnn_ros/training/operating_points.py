"""Precision and recall of a DNN by score threshold, for choosing parameter score_threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision.ops import box_area, box_iou

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.training.batches import Inputs
from multi_dnn_ros.training.metrics import LaneScore, Prediction, Truth
from multi_dnn_ros.training.samples import Rows
from multi_dnn_ros.training.scoring import by_image, run_on_rows

THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))
#: Minimum IoU of a detection and a true box to match, as in mAP@0.5.
_MATCH_IOU = 0.5
#: The node's default NMS threshold.
_NODE_IOU = 0.5


@dataclass(frozen=True)
class OperatingPoint:
    """Figures at a score threshold: shares 0..1, None if undefined.

    false_per_image: false detections; None for lanes, whose precision and recall are of pixels.
    """

    threshold: float
    precision: float | None
    recall: float | None
    false_per_image: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}


def box_points(
    predictions: Sequence[Prediction], truths: Sequence[Truth], thresholds: Sequence[float] = THRESHOLDS
) -> list[OperatingPoint]:
    """Operating points of a detector, over all classes.

    predictions, truths: one per image. A detection is correct if it overlaps (IoU at least 0.5) a true box of its class
    that no detection of higher score has matched. Detections with at least half of their area in an ignored box do not
    count. Raises ValueError if predictions and truths differ in length.
    """
    if len(predictions) != len(truths):
        raise ValueError(f"{len(predictions)} predictions for {len(truths)} images")
    scores: list[float] = []
    correct: list[bool] = []
    for found, truth in zip(predictions, truths, strict=True):
        for score, is_match in _judged(found, truth):
            scores.append(score)
            correct.append(is_match)
    total = sum(len(truth.boxes) for truth in truths)
    score_of, is_correct = np.array(scores, np.float64), np.array(correct, bool)
    points = []
    for threshold in thresholds:
        kept = score_of >= threshold
        found_count, correct_count = int(kept.sum()), int((kept & is_correct).sum())
        points.append(
            OperatingPoint(
                threshold,
                correct_count / found_count if found_count else None,
                correct_count / total if total else None,
                (found_count - correct_count) / len(truths) if truths else None,
            )
        )
    return points


def _judged(found: Prediction, truth: Truth) -> Iterator[tuple[float, bool]]:
    """(score, correct) of each detection of an image that counts."""
    boxes, true = torch.from_numpy(found.boxes), torch.from_numpy(truth.boxes)
    overlaps = box_iou(boxes, true).numpy() * (found.class_ids[:, None] == truth.class_ids)
    excused = np.zeros(len(boxes), bool)
    if truth.ignored is not None and len(truth.ignored):
        ignored = torch.from_numpy(truth.ignored)
        low, high = torch.maximum(boxes[:, None, :2], ignored[:, :2]), torch.minimum(boxes[:, None, 2:], ignored[:, 2:])
        inside = (high - low).clamp(min=0).prod(2) / box_area(boxes)[:, None].clamp(min=1e-9)
        excused = inside.amax(1).numpy() >= 0.5
    for k in np.argsort(-found.scores, kind="stable"):
        best = int(overlaps[k].argmax()) if len(true) else -1
        if best >= 0 and overlaps[k, best] >= _MATCH_IOU:
            overlaps[:, best] = 0.0  # matched
            yield float(found.scores[k]), True
        elif not excused[k]:
            yield float(found.scores[k]), False


def operating_points(
    network: nn.Module, rows: Rows, inputs: Inputs, decoder: Decoder, batch_size: int = 64, progress: str = ""
) -> list[OperatingPoint]:
    """Operating points of a network in eval mode on `rows` of boxes or lanes; NMS is applied to boxes as in the node.

    Boxes are compared in pixels of the network's input, lanes as in LaneScore. The decoder's thresholds are restored
    afterwards.
    """
    before = decoder.score_threshold, decoder.iou_threshold
    decoder.iou_threshold = _NODE_IOU
    detections: list[Prediction] = []
    truths: list[Truth] = []
    lanes = {threshold: LaneScore() for threshold in THRESHOLDS}
    try:
        for leaves, truth, size in by_image(run_on_rows(network, rows, inputs, batch_size, progress)):
            if isinstance(truth, Truth):
                decoder.score_threshold = THRESHOLDS[0]
                detections.append(decoder(leaves, size))
                truths.append(truth)
                continue
            for threshold, score in lanes.items():
                decoder.score_threshold = threshold
                score.add(decoder(leaves, size).mask, np.asarray(truth))
    finally:
        decoder.score_threshold, decoder.iou_threshold = before
    if truths:
        return box_points(detections, truths)
    return [
        OperatingPoint(threshold, score.precision if score.predicted else None, score.recall if score.true else None)
        for threshold, score in lanes.items()
    ]
