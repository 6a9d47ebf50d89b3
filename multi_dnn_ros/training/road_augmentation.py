"""Augmentation that makes generated road as varied as real road: light, dirt, wear, occlusion and cameras.

All of it runs on the device of the batch and draws from one generator, so that an epoch can be repeated and rendering
stays the only work of the CPU. The idea is that of domain randomization (Tobin et al. 2017, arXiv:1703.06907): a
network trained on more variation than reality has does not depend on the look of the renderer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from multi_dnn_ros.training.batches import Batch, augment_colours
from multi_dnn_ros.training.random_rows import Random, by_group, uniform

#: Side of the blocks that JPEG and MJPEG quantize, pixels.
_BLOCK = 8


def augment_roads(batch: Batch, rng: Random) -> Batch:
    """Vary images (B, 3, h, w) 0..1 with their masks (B, 1, h, w) uint8; h and w multiples of 8.

    Geometry: mirrored, scaled by 0.7 to 1.5, turned by up to 4 degrees, shifted by up to 15 %. Content: parts of
    other images and plain rectangles cover the road and its mask; worn paint stays in the mask.
    Light: shadows with hard and soft edges, glare, haze. Camera: colours, blur, blocks of a compressed stream, noise.
    """
    image, mask = _moved(batch["image"], batch["mask"].float() / 255.0, rng)
    image, mask = _covered(image, mask, rng)
    image = _worn(image, mask, rng)
    image = _textured(image, rng)
    image = _shaded(image, rng)
    image = _veiled(image, rng)
    image = augment_colours(image, rng, strength=1.8)
    image = _without_colour(image, rng)
    image = _blurred(image, rng)
    image = _in_blocks(image, rng)
    return {**batch, "image": image.clamp(0.0, 1.0), "mask": (mask * 255.0).round().to(torch.uint8)}


def _selected(rng: Random, count: int, share: float) -> Tensor:
    """(count, 1, 1, 1): 1 for a random `share` of the images, 0 for the others."""
    return (uniform(rng, 0.0, 1.0, count, 1, 1, 1) < share).float()


def _coordinates(image: Tensor) -> tuple[Tensor, Tensor]:
    """Column and row of each pixel, -1..1, (1, 1, 1, w) and (1, 1, h, 1)."""
    height, width = image.shape[2:]
    across = torch.linspace(-1.0, 1.0, width, device=image.device)
    down = torch.linspace(-1.0, 1.0, height, device=image.device)
    return across.view(1, 1, 1, -1), down.view(1, 1, -1, 1)


def _field(image: Tensor, rng: Random, cells: int) -> Tensor:
    """(B, 1, h, w) smooth noise, 0..1, with about `cells` random values across."""
    b, _, height, width = image.shape
    rows = max(2, round(cells * height / width))
    values = uniform(rng, 0.0, 1.0, b, 1, rows, max(2, cells))
    return F.interpolate(values, (height, width), mode="bicubic", align_corners=False).clamp(0.0, 1.0)


def _moved(image: Tensor, mask: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
    b, _, height, width = image.shape
    scale = 1.0 / uniform(rng, 0.7, 1.5, b)
    mirror = torch.where(uniform(rng, 0.0, 1.0, b) < 0.5, -1.0, 1.0)
    stretch = uniform(rng, 0.9, 1.1, b)
    turn = uniform(rng, -math.radians(4.0), math.radians(4.0), b)
    matrix = torch.zeros(b, 2, 3, device=image.device)
    matrix[:, 0, 0], matrix[:, 0, 1] = mirror * scale * turn.cos(), -scale * turn.sin() * height / width
    matrix[:, 1, 0], matrix[:, 1, 1] = (
        mirror * scale * stretch * turn.sin() * width / height,
        scale * stretch * turn.cos(),
    )
    matrix[:, 0, 2], matrix[:, 1, 2] = uniform(rng, -0.2, 0.2, b), uniform(rng, -0.2, 0.2, b)
    grid = F.affine_grid(matrix, list(image.shape), align_corners=False)
    return (
        F.grid_sample(image, grid, padding_mode="reflection", align_corners=False),
        F.grid_sample(mask, grid, padding_mode="reflection", align_corners=False),
    )


def _rectangle(image: Tensor, rng: Random, largest: float) -> Tensor:
    """(B, 1, h, w) bool: one rectangle per image with sides up to `largest` of the image's."""
    b = len(image)
    across, down = _coordinates(image)
    x, y = uniform(rng, -1.0, 1.0, b, 1, 1, 1), uniform(rng, -1.0, 1.0, b, 1, 1, 1)
    half_width, half_height = uniform(rng, 0.02, largest, b, 1, 1, 1), uniform(rng, 0.02, largest, b, 1, 1, 1)
    return ((across - x).abs() < half_width) & ((down - y).abs() < half_height)


def _covered(image: Tensor, mask: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
    b = len(image)
    part = _rectangle(image, rng, 0.4) & (_selected(rng, b, 0.35) > 0)
    image, mask = (torch.where(part, by_group(rng, each, _rolled), each) for each in (image, mask))
    for _ in range(2):
        part = _rectangle(image, rng, 0.2) & (_selected(rng, b, 0.3) > 0)
        plain = uniform(rng, 0.0, 1.0, b, 3, 1, 1).expand_as(image)
        image, mask = torch.where(part, plain, image), torch.where(part, torch.zeros_like(mask), mask)
    return image, mask


def _rolled(rows: Tensor) -> Tensor:
    return rows.roll(1, 0)


def _worn(image: Tensor, mask: Tensor, rng: Random) -> Tensor:
    """Fade paint into the asphalt next to it; the mask is unchanged, because a person would still see the line."""
    b = len(image)
    paint = F.max_pool2d(mask, 3, 1, 1)
    weight = 1.0 - paint
    around = F.avg_pool2d(image * weight, 15, 1, 7) / F.avg_pool2d(weight, 15, 1, 7).clamp(min=1e-3)
    missing = ((_field(image, rng, 24) - uniform(rng, 0.2, 1.0, b, 1, 1, 1)) * 6.0).clamp(0.0, 1.0)
    strength = uniform(rng, 0.0, 0.85, b, 1, 1, 1) * _selected(rng, b, 0.6)
    return torch.lerp(image, around, paint * missing * strength)


def _textured(image: Tensor, rng: Random) -> Tensor:
    b = len(image)
    for cells in (6, 20, 80):
        amount = uniform(rng, 0.0, 0.12, b, 1, 1, 1) * _selected(rng, b, 0.6)
        tint = uniform(rng, 0.8, 1.2, b, 3, 1, 1)
        image = image + (_field(image, rng, cells) - 0.5) * amount * tint
    return image.clamp(0.0, 1.0)


def _shaded(image: Tensor, rng: Random) -> Tensor:
    """Add bands (poles, bridges, walls) and blotches (trees) of shadow."""
    b = len(image)
    across, down = _coordinates(image)
    for _ in range(3):
        angle = uniform(rng, 0.0, math.pi, b, 1, 1, 1)
        away = across * angle.cos() + down * angle.sin() - uniform(rng, -1.0, 1.0, b, 1, 1, 1)
        sharp = torch.exp(uniform(rng, 1.5, 5.0, b, 1, 1, 1))
        width = uniform(rng, 0.02, 0.5, b, 1, 1, 1)
        band = torch.sigmoid(sharp * away) * torch.sigmoid(sharp * (width - away))
        image = image * (1.0 - uniform(rng, 0.1, 0.7, b, 1, 1, 1) * _selected(rng, b, 0.3) * band)
    trees = torch.sigmoid((_field(image, rng, 40) - 0.5) * 30.0)
    return image * (1.0 - uniform(rng, 0.1, 0.6, b, 1, 1, 1) * _selected(rng, b, 0.3) * trees)


def _veiled(image: Tensor, rng: Random) -> Tensor:
    """Add haze that grows with the distance, and the glare of a low sun or of a lamp."""
    b = len(image)
    across, down = _coordinates(image)
    haze = (1.0 - down) / 2.0 * uniform(rng, 0.1, 0.7, b, 1, 1, 1) * _selected(rng, b, 0.3)
    image = torch.lerp(image, uniform(rng, 0.5, 0.95, b, 3, 1, 1).expand_as(image), haze)
    x, y = uniform(rng, -1.0, 1.0, b, 1, 1, 1), uniform(rng, -1.0, 0.8, b, 1, 1, 1)
    size = uniform(rng, 0.1, 0.8, b, 1, 1, 1)
    glare = torch.exp(-((across - x) ** 2 + (down - y) ** 2) / size**2)
    return image + glare * uniform(rng, 0.1, 0.8, b, 1, 1, 1) * _selected(rng, b, 0.2)


def _without_colour(image: Tensor, rng: Random) -> Tensor:
    grey = image.mean(dim=1, keepdim=True).expand_as(image)
    b = len(image)
    return torch.lerp(image, grey, uniform(rng, 0.3, 1.0, b, 1, 1, 1) * _selected(rng, b, 0.25))


def _blurred(image: Tensor, rng: Random) -> Tensor:
    b = len(image)
    for kernel, padding in (((3, 3), (1, 1)), ((1, 5), (0, 2)), ((5, 1), (2, 0))):
        soft = F.avg_pool2d(F.pad(image, (padding[1], padding[1], padding[0], padding[0]), "replicate"), kernel, 1)
        image = torch.lerp(image, soft, uniform(rng, 0.3, 1.0, b, 1, 1, 1) * _selected(rng, b, 0.25))
    return image


def _in_blocks(image: Tensor, rng: Random) -> Tensor:
    """Add JPEG artifacts: round the coefficients of 8 x 8 pixel blocks to steps that grow with the frequency."""
    b, channels, height, width = image.shape
    order = torch.arange(_BLOCK, device=image.device, dtype=image.dtype)
    basis = torch.cos((2 * order + 1) * order[:, None] * math.pi / (2 * _BLOCK)) * math.sqrt(2 / _BLOCK)
    basis[0] /= math.sqrt(2)
    blocks = image.view(b, channels, height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).transpose(3, 4)
    coefficients = basis @ blocks @ basis.T
    strength = uniform(rng, 0.005, 0.05, b, 1, 1, 1, 1, 1)
    steps = strength * (1.0 + 0.5 * (order[:, None] + order))
    rounded = (coefficients / steps).round() * steps
    found = (basis.T @ rounded @ basis).transpose(3, 4).reshape(image.shape)
    return torch.where(_selected(rng, b, 0.5) > 0, found, image)
