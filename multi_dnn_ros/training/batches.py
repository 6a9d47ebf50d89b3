"""Batches from arrays on the training device, shuffled and varied there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Batch = dict[str, Tensor]
Vary = Callable[[Batch, torch.Generator], Batch]


class ArrayBatches:
    """Batches of whole arrays that lie in memory; any epoch can be made again from its number.

    arrays: all (N, ...); "image" is (N, 3, h, w) uint8 and comes out as float 0..1. vary: changes a batch there.
    repeats: (N,) how often an epoch shows each row; None: once.
    """

    def __init__(
        self,
        arrays: Mapping[str, Tensor],
        batch_size: int,
        seed: int,
        vary: Vary | None = None,
        repeats: Tensor | None = None,
    ) -> None:
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"arrays of lengths {sorted(lengths)}: must be equal and not 0")
        self.arrays = dict(arrays)
        self.seed = seed
        self.vary = vary
        self.rows = torch.arange(lengths.pop())
        if repeats is not None:
            self.rows = self.rows.repeat_interleave(repeats)
        self.batch_size = min(batch_size, len(self.rows))

    def __len__(self) -> int:
        return len(self.rows) // self.batch_size

    def epoch(self, number: int) -> Iterator[Batch]:
        """All batches of an epoch; a last incomplete one is left out."""
        device = self.arrays["image"].device
        shuffle = torch.Generator().manual_seed(self.seed * 100_003 + number)
        dice = torch.Generator(device).manual_seed(self.seed * 100_003 + number)
        order = self.rows[torch.randperm(len(self.rows), generator=shuffle)].to(device)
        for k in range(len(self)):
            chosen = order[k * self.batch_size : (k + 1) * self.batch_size]
            batch = {name: array[chosen] for name, array in self.arrays.items()}
            batch["image"] = batch["image"].float() / 255.0
            yield self.vary(batch, dice) if self.vary is not None else batch


def uniform(dice: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Random values on the generator's device."""
    return low + (high - low) * torch.rand(*shape, generator=dice, device=dice.device)


def vary_colours(image: Tensor, dice: torch.Generator, strength: float = 1.0) -> Tensor:
    """Brightness, contrast, white balance, gamma and noise, image by image; (B, 3, h, w) 0..1 in and out."""
    b = len(image)
    gamma = torch.exp(uniform(dice, -0.2, 0.2, b, 1, 1, 1) * strength)
    gain = torch.exp(
        uniform(dice, -0.18, 0.18, b, 1, 1, 1) * strength + uniform(dice, -0.06, 0.06, b, 3, 1, 1) * strength
    )
    mean = image.mean(dim=(1, 2, 3), keepdim=True)
    contrast = torch.exp(uniform(dice, -0.2, 0.2, b, 1, 1, 1) * strength)
    varied = ((image - mean) * contrast + mean).clamp(1e-4, 1.0).pow(gamma) * gain
    noise = torch.randn(image.shape, generator=dice, device=image.device)
    return (varied + noise * uniform(dice, 0.0, 0.02, b, 1, 1, 1) * strength).clamp(0.0, 1.0)


def vary_detection(batch: Batch, dice: torch.Generator) -> Batch:
    """Mirror half of the images with their boxes, then vary the colours."""
    image, boxes = batch["image"], batch["boxes"]
    flip = uniform(dice, 0.0, 1.0, len(image)) < 0.5
    image = torch.where(flip[:, None, None, None], image.flip(3), image)
    mirrored = boxes[..., (2, 1, 0, 3)].clone()
    mirrored[..., (0, 2)] = image.shape[3] - mirrored[..., (0, 2)]
    boxes = torch.where(flip[:, None, None] & (batch["classes"] != -1)[..., None], mirrored, boxes)
    return {**batch, "image": vary_colours(image, dice), "boxes": boxes}


def vary_lanes(batch: Batch, dice: torch.Generator) -> Batch:
    """Mirror, scale by 0.85 to 1.3, shift by up to a tenth, then vary the colours; the mask goes along."""
    image, mask = batch["image"], batch["mask"].float() / 255.0
    b = len(image)
    across = torch.where(uniform(dice, 0.0, 1.0, b) < 0.5, -1.0, 1.0) / uniform(dice, 0.85, 1.3, b)
    down = across.abs() / uniform(dice, 0.93, 1.07, b)
    matrix = torch.zeros(b, 2, 3, device=image.device)
    matrix[:, 0, 0], matrix[:, 1, 1] = across, down
    matrix[:, 0, 2], matrix[:, 1, 2] = uniform(dice, -0.12, 0.12, b), uniform(dice, -0.15, 0.15, b)
    grid = F.affine_grid(matrix, list(image.shape), align_corners=False)
    image = F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)
    mask = F.grid_sample(mask, grid, padding_mode="reflection", align_corners=False)
    varied = vary_colours(image, dice, strength=1.3)
    return {**batch, "image": varied, "mask": (mask * 255.0).round().to(torch.uint8)}
