"""Classification: loss, and top-1 and top-5 accuracy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from multi_dnn_ros.training.samples import Batch


class ClassificationLoss:
    """Cross-entropy with label smoothing (Szegedy et al. 2016).

    outputs: (B, classes) logits. batch["label"]: (B,) int64; or (B, classes) float, the shares of
    the classes in a mixed image. smoothing: 0..1, share spread over all classes.
    """

    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.float(), batch["label"], label_smoothing=self.smoothing)


class Accuracy:
    """Share of images whose class is ranked first, or among the first five."""

    def __init__(self) -> None:
        self.first = self.five = self.count = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """logits: (B, classes). labels: (B,) int64 on the same device."""
        best = logits.float().topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        self.first += int(best[:, 0].sum())
        self.five += int(best.any(dim=1).sum())
        self.count += len(labels)

    def scores(self) -> dict[str, float]:
        """top1 and top5, 0..1."""
        return {"top1": self.first / max(1, self.count), "top5": self.five / max(1, self.count)}


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of softened class distributions, times the temperature squared
    (Hinton et al. 2015).
    """
    target = F.log_softmax(teacher.float() / temperature, dim=1)
    return F.kl_div(
        F.log_softmax(student.float() / temperature, dim=1), target, reduction="batchmean", log_target=True
    ) * temperature**2  # fmt: skip


def logits_of(outputs: object) -> Tensor:
    """The single (B, classes) tensor that a classifier returns; raises ValueError for anything else."""
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ValueError(f"the network returns {shape}; a classifier returns logits (images, classes)")
    return outputs
