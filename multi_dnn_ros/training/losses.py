"""Losses on raw outputs, so that any network with the same output format can be (re)trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torchvision.ops import box_convert, box_iou, complete_box_iou_loss

from multi_dnn_ros.models.dnn import Dnn, Source
from multi_dnn_ros.models.networks import cells
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.samples import Batch

#: Loss of raw outputs on a batch.
Loss = Callable[[Any, Batch], Tensor]
#: Combinations of grid strides in YOLO-style heads.
_STRIDES = ((8, 16, 32), (16, 32), (8, 16), (32,), (16,), (8,), (4, 8, 16, 32), (8, 16, 32, 64))
#: Temperature of the class distributions that a student learns (Hinton et al. 2015).
_TEMPERATURE = 4.0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Context for a forward pass in `precision` (fp32, bf16) on CUDA; no effect on other devices."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32" and device.type == "cuda")


@dataclass(frozen=True)
class ClassificationLoss:
    """Cross-entropy of (B, classes) logits with label smoothing (Szegedy et al. 2016). batch["label"]: (B,) int64.

    smoothing: 0..1, share spread over all classes.
    """

    smoothing: float = 0.1

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.float(), batch["label"], label_smoothing=self.smoothing)


def logits_of(outputs: object) -> Tensor:
    """The single (B, classes) tensor that a classifier returns; raises ValueError for anything else."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"the network returns {shape}; a classifier returns logits (images, classes)")
    return outputs


def lane_map_loss(outputs: Tensor, batch: Batch, lane_classes: Sequence[int] = (0,)) -> Tensor:
    """Binary cross-entropy plus soft Dice (Milletari et al. 2016), which makes up for the small number of lane pixels.

    outputs: (B, classes, h, w) logits; one class: sigmoid, several: softmax. lane_classes: the classes that are lanes.
    batch["mask"]: (B, 1, H, W) uint8, 0..255 = share of the pixel that is lane, resized to the outputs.
    """
    target = batch["mask"].float() / 255.0
    if target.shape[2:] != outputs.shape[2:]:
        target = F.interpolate(target, outputs.shape[2:], mode="area")
    logits = outputs.float()
    if logits.shape[1] > 1:
        lane = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
        lane[list(lane_classes)] = True
        logits = logits[:, lane].logsumexp(1, keepdim=True) - logits[:, ~lane].logsumexp(1, keepdim=True)
    entropy = F.binary_cross_entropy_with_logits(logits, target, weight=1.0 + target)
    probability = logits.sigmoid()
    overlap = 2.0 * (probability * target).sum(dim=(1, 2, 3)) + 1.0
    total = (probability.square() + target.square()).sum(dim=(1, 2, 3)) + 1.0
    return 4.0 * entropy + (1.0 - overlap / total).mean()


class DetectionLoss:
    """Task-aligned assignment (Feng et al. 2021) with binary cross-entropy and complete IoU (Zheng et al. 2020).

    outputs: (B, 4 + classes, N) as DetectorNet returns. batch["boxes"]: (B, M, 4) x1, y1, x2, y2 in input pixels;
    batch["classes"]: (B, M) int64, class, -1 = no box, -2 and less = ignored: detections inside such a box count
    neither as correct nor as false.

    In several processes of a `distributed.process_group`, all of them must call it for their part of a batch. Gradients
    of the losses, weighted by the numbers of images, then add up to those of one process with the whole batch.
    """

    #: Number of cells assigned to each object, weight of the overlap relative to the score when ranking cells, and
    #: weight of the box loss.
    TOP, BETA, BOX = 9, 5.0, 2.5

    def __init__(self, input_size: Sequence[int], strides: Sequence[int]) -> None:
        """input_size: (width, height)."""
        self.points = cells(input_size[0], input_size[1], strides)[0]
        self.reach = 0.75 * min(strides)  # objects smaller than a cell still get the cells around their centre

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        self.points = self.points.to(outputs.device)
        outputs = outputs.float()
        boxes = box_convert(outputs[:, :4].transpose(1, 2), "cxcywh", "xyxy")  # (B, N, 4)
        scores = outputs[:, 4:].transpose(1, 2)  # (B, N, classes)
        with torch.no_grad():
            owner, quality, free = self.assign(boxes.detach(), scores.detach(), batch["boxes"], batch["classes"])
            positive = owner >= 0
            truth = batch["boxes"].gather(1, owner.clamp(min=0)[..., None].expand(-1, -1, 4))
            label = batch["classes"].gather(1, owner.clamp(min=0)).clamp(min=0)
            target = F.one_hot(label, scores.shape[2]).float() * (quality * positive)[..., None]
            # The loss is a mean over cells, not images: divide by this part's share of the targets in the whole batch.
            cells_and_images = torch.stack([target.sum(), target.new_tensor(float(len(target)))])
            norm, images = distributed.total(cells_and_images).unbind()
            norm = norm.clamp(min=1.0) * (len(target) / images)
        # Focal weight (Lin et al. 2017) for the many empty cells only; assigned cells learn their quality.
        weight = torch.where(target > 0, 1.0, scores.detach().square()) * (~free)[..., None]
        probability = scores.clamp(1e-6, 1.0 - 1e-6)
        entropy = (F.binary_cross_entropy(probability, target, reduction="none") * weight).sum() / norm
        overlap = complete_box_iou_loss(boxes[positive], truth[positive], reduction="none")
        total: Tensor = entropy + self.BOX * (overlap * quality[positive]).sum() / norm
        return total

    def assign(self, boxes: Tensor, scores: Tensor, truth: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Assign objects to cells.

        boxes (B, N, 4), scores (B, N, C), truth (B, M, 4), classes (B, M) -> owner (B, N) int64, index of the object or
        -1; quality (B, N), target score 0..1; free (B, N) bool, cells whose score does not count.
        """
        x, y = self.points[:, 0], self.points[:, 1]
        centre, half = (truth[..., :2] + truth[..., 2:]) / 2, (truth[..., 2:] - truth[..., :2]) / 2
        reach = half.clamp(min=self.reach)
        inside = ((x - centre[..., :1]).abs() < reach[..., :1]) & ((y - centre[..., 1:]).abs() < reach[..., 1:])
        valid = (classes >= 0)[..., None]  # (B, M, 1)
        free = (inside & (classes <= -2)[..., None]).any(dim=1)
        overlap = torch.stack([box_iou(*pair) for pair in zip(truth, boxes, strict=True)]).nan_to_num()
        class_score = scores.transpose(1, 2).gather(1, classes.clamp(min=0)[..., None].expand(-1, -1, scores.shape[1]))
        metric = class_score.clamp(min=1e-4).sqrt() * overlap.clamp(min=1e-3).pow(self.BETA) * (inside & valid)
        best = metric.topk(min(self.TOP, metric.shape[2]), dim=2)
        chosen = torch.zeros_like(metric).scatter_(2, best.indices, best.values)  # zero where not chosen
        peak = chosen.amax(dim=2, keepdim=True).clamp(min=1e-12)
        reached = (overlap * (chosen > 0)).amax(dim=2, keepdim=True)
        aligned = chosen / peak * reached  # the target of an object's best cell is its overlap
        strength, owner = torch.where(chosen > 0, overlap, -1.0).max(dim=1)
        taken = strength >= 0
        quality = aligned.gather(1, owner[:, None]).squeeze(1) * taken
        return torch.where(taken, owner, -1), quality, free & ~taken


def lane_loss(dnn: Dnn, source: Source) -> Loss:
    """The loss for decoder `lane`, with the classes that it treats as lanes."""
    decoder: Any = dnn.decoder
    return partial(lane_map_loss, lane_classes=decoder.chosen_classes)


def yolo_loss(dnn: Dnn, source: Source) -> Loss | None:
    """The loss for decoder `yolo`; None if the number of anchor points matches none of the known grids."""
    size = (dnn.preprocess.width, dnn.preprocess.height)
    with torch.no_grad():
        (output,) = pytree.tree_leaves(dnn.module(*dnn.example_inputs()))
    for strides in _STRIDES:
        if len(cells(*size, strides)[0]) == output.shape[2]:
            return DetectionLoss(size, strides)
    return None


def distilled(loss: Loss | None, teacher: nn.Module, weight: float, classes: bool, precision: str) -> Loss:
    """A loss that combines the truth with a teacher's outputs for the same (augmented) images.

    loss: loss on the truth; None: the teacher alone counts. teacher: in eval mode on the training device. weight: share
    of the teacher, 0..1. classes: whether the outputs are logits of classes.
    """
    teacher.requires_grad_(False)
    difference = class_difference if classes else output_difference

    def combined(outputs: Any, batch: Batch) -> Tensor:
        with torch.no_grad(), autocast(batch["image"].device, precision):
            target = teacher(batch["image"])
        taught = difference(outputs, target)
        return taught if loss is None else weight * taught + (1.0 - weight) * loss(outputs, batch)

    return combined


def class_difference(outputs: Any, target: Any) -> Tensor:
    """Kullback-Leibler divergence of two classifiers' softened class distributions, times the temperature squared."""
    student, teacher = (F.log_softmax(logits_of(each).float() / _TEMPERATURE, dim=1) for each in (outputs, target))
    return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * _TEMPERATURE**2


def output_difference(outputs: Any, target: Any) -> Tensor:
    """Difference between raw outputs of two detectors or lane networks, in units of the teacher's standard deviation.

    A smooth L1 distance (Girshick 2015), so that one outlier box does not dominate; each row of axis 1 has its own
    deviation, because box sides in pixels and scores are in the same tensor.
    """
    students, teachers = pytree.tree_leaves(outputs), pytree.tree_leaves(target)
    total = torch.zeros((), device=students[0].device)
    for student, teacher in zip(students, teachers, strict=True):
        wanted = teacher.float()
        axes = [axis for axis in range(wanted.ndim) if axis != 1]
        spread = wanted.std(dim=axes, keepdim=True, correction=0).clamp(min=1e-3)
        total = total + F.smooth_l1_loss(student.float() / spread, wanted / spread)
    return total / len(students)
