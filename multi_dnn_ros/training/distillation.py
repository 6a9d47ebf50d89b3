"""Knowledge distillation: the original network as teacher of the retrained one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from multi_dnn_ros.training.loop import Loss, autocast
from multi_dnn_ros.training.losses import logits_of
from multi_dnn_ros.training.samples import Batch

#: Temperature of the class distributions that a student learns.
_TEMPERATURE = 4.0


class Distilled:
    """A loss that combines the truth with a teacher's outputs for the same (augmented) images.

    loss: loss on the truth; None: the teacher alone counts. teacher: in eval mode on the training device. weight: share
    of the teacher, 0..1. classes: whether the outputs are logits of classes.
    """

    def __init__(self, loss: Loss | None, teacher: nn.Module, weight: float, classes: bool, precision: str) -> None:
        self.loss = loss
        self.teacher = teacher.requires_grad_(False)
        self.weight = 1.0 if loss is None else weight
        self.difference = class_difference if classes else output_difference
        self.precision = precision

    def __call__(self, outputs: Any, batch: Batch) -> Tensor:
        image = batch["image"]
        with torch.no_grad(), autocast(image.device, self.precision):
            target = self.teacher(image)
        value = self.weight * self.difference(outputs, target)
        if self.loss is not None and self.weight < 1.0:
            value = value + (1.0 - self.weight) * self.loss(outputs, batch)
        return value


def class_difference(outputs: Any, target: Any) -> Tensor:
    """Kullback-Leibler divergence of two classifiers' softened class distributions, times the temperature squared
    (Hinton et al. 2015).
    """
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
