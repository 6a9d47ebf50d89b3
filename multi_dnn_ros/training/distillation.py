"""Knowledge distillation: the original network as teacher of the retrained one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from multi_dnn_ros.training.classification import logits_of, soft_targets
from multi_dnn_ros.training.loop import Loss
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.training.samples import Batch


class Distilled:
    """A loss that combines the truth with a teacher's outputs for the same (augmented) images.

    loss: loss on the truth; None: the teacher alone counts. teacher: in eval mode on the training device. weight: share
    of the teacher, 0..1. difference: loss between the student's and the teacher's outputs.
    """

    def __init__(
        self,
        loss: Loss | None,
        teacher: nn.Module,
        difference: Callable[[Any, Any], Tensor],
        *,
        weight: float = 0.5,
        precision: str = "fp32",
    ) -> None:
        self.loss = loss
        self.teacher = teacher.requires_grad_(False)
        self.difference = difference
        self.weight = 1.0 if loss is None else weight
        self.precision = precision

    def __call__(self, outputs: Any, batch: Batch) -> Tensor:
        image = batch["image"]
        with torch.no_grad(), autocast(image.device, self.precision):
            target = self.teacher(image)
        value = self.weight * self.difference(outputs, target)
        if self.loss is not None and self.weight < 1.0:
            value = value + (1.0 - self.weight) * self.loss(outputs, batch)
        return value


class SoftTargets:
    """Difference between the outputs of two classifiers: of their softened class distributions."""

    def __init__(self, temperature: float = 4.0) -> None:
        self.temperature = temperature

    def __call__(self, outputs: Any, target: Any) -> Tensor:
        student, teacher = logits_of(outputs), logits_of(target)
        if student.shape != teacher.shape:
            raise ValueError(f"the teacher has {teacher.shape[1]} classes, the network {student.shape[1]}")
        return soft_targets(student, teacher, self.temperature)


def raw_outputs(outputs: Any, target: Any) -> Tensor:
    """Difference between raw outputs of two detectors or lane networks, in units of the teacher's standard deviation.

    A smooth L1 distance (Girshick 2015), so that one outlier box does not dominate; each row of axis 1 has its own
    deviation, because box sides in pixels and scores are in the same tensor.
    """
    students = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    teachers = [leaf for leaf in pytree.tree_leaves(target) if isinstance(leaf, Tensor)]
    if [leaf.shape for leaf in students] != [leaf.shape for leaf in teachers]:
        raise ValueError(
            f"the teacher's outputs have shapes {[tuple(leaf.shape) for leaf in teachers]}, the network's "
            f"{[tuple(leaf.shape) for leaf in students]}"
        )
    total = torch.zeros((), device=students[0].device)
    for student, teacher in zip(students, teachers, strict=True):
        wanted = teacher.float()
        axes = [axis for axis in range(wanted.ndim) if axis != 1]
        spread = wanted.std(dim=axes, keepdim=True, correction=0).clamp(min=1e-3)
        total = total + F.smooth_l1_loss(student.float() / spread, wanted / spread)
    return total / len(students)
