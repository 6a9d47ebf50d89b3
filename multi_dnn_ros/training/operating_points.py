"""Precision and recall of a DNN by score threshold, for choosing parameter score_threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.training.batches import Inputs
from multi_dnn_ros.training.data import Rows
from multi_dnn_ros.training.metrics import LaneScore, Prediction, Truth
from multi_dnn_ros.training.setup import LANE_SHARE, run_on_rows, truth_of
from multi_dnn_ros.vision.decoders.base import Decoder

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
    taken = np.zeros(len(truth.boxes), bool)
    ignored = truth.ignored if truth.ignored is not None else np.zeros((0, 4), np.float32)
    for k in np.argsort(-found.scores, kind="stable"):
        box = found.boxes[k]
        common = _intersection(box, truth.boxes)
        overlap = common / np.maximum(_area(box) + _area(truth.boxes) - common, 1e-9)
        overlap[taken | (truth.class_ids != found.class_ids[k])] = 0.0
        if len(overlap) and overlap.max() >= _MATCH_IOU:
            taken[overlap.argmax()] = True
            yield float(found.scores[k]), True
        elif not len(ignored) or (_intersection(box, ignored) / np.maximum(_area(box), 1e-9)).max() < 0.5:
            yield float(found.scores[k]), False


def _area(boxes: npt.NDArray[np.float32]) -> Any:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def _intersection(box: npt.NDArray[np.float32], boxes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Intersection areas of `box` (4,) with each of `boxes` (N, 4)."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    return np.asarray(np.prod(np.clip(high - low, 0.0, None), axis=1))


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
        for outputs, batch in run_on_rows(network, rows, inputs, batch_size, progress):
            leaves = [leaf.float().cpu() for leaf in pytree.tree_leaves(outputs)]
            for k in range(len(leaves[0])):
                single = [leaf[k : k + 1] for leaf in leaves]
                if "mask" in batch:
                    _add_lanes(decoder, single, batch["mask"][k, 0], lanes)
                    continue
                decoder.score_threshold = THRESHOLDS[0]
                height, width = batch["image"].shape[2:]
                result = decoder(single, (height, width))
                detections.append(result)
                truths.append(truth_of(batch["boxes"][k].cpu().numpy(), batch["classes"][k].cpu().numpy()))
    finally:
        decoder.score_threshold, decoder.iou_threshold = before
    if truths:
        return box_points(detections, truths)
    return [
        OperatingPoint(threshold, score.precision if score.predicted else None, score.recall if score.true else None)
        for threshold, score in lanes.items()
    ]


def _add_lanes(
    decoder: Decoder, outputs: Sequence[torch.Tensor], mask: torch.Tensor, scores: dict[float, LaneScore]
) -> None:
    true = mask.cpu().numpy()
    for threshold, score in scores.items():
        decoder.score_threshold = threshold
        found = decoder(outputs, true.shape)
        score.add(found.mask, true >= LANE_SHARE)
