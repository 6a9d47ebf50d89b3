"""Random numbers for augmentation: from one generator, or from one generator per group of rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GroupedRandom:
    """Generators for the rows of a batch, such as one per tenth.

    Each group gets the random numbers that it would get as a batch of its own, but operations on images are done once
    for the whole batch: on a GPU, each of them takes the host as long for few images as for many. groups: generator
    and number of rows of each group, in the order of the rows.
    """

    groups: tuple[tuple[torch.Generator, int], ...]


Random = torch.Generator | GroupedRandom


def uniform(rng: Random, low: float, high: float, *shape: int) -> Tensor:
    """Uniform random values in low..high, on the generator's device. shape: rows first."""
    return low + (high - low) * _drawn(rng, shape, lambda own, part: torch.rand(part, generator=own, device=own.device))


def normal(rng: Random, *shape: int) -> Tensor:
    """Normally distributed random values, on the generator's device. shape: rows first."""
    return _drawn(rng, shape, lambda own, part: torch.randn(part, generator=own, device=own.device))


def integers(rng: Random, high: int, *shape: int) -> Tensor:
    """Random int64 in 0..high - 1, on the generator's device. shape: rows first."""
    return _drawn(rng, shape, lambda own, part: torch.randint(high, part, generator=own, device=own.device))


def by_group(rng: Random, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an operation that combines rows, such as flip(0), to each group. rows: (B, ...)."""
    if isinstance(rng, torch.Generator):
        return change(rows)
    return torch.cat([change(part) for part in rows.split([count for _, count in rng.groups])])


def _drawn(
    rng: Random, shape: tuple[int, ...], draw: Callable[[torch.Generator, tuple[int, ...]], Tensor]
) -> Tensor:  # fmt: skip
    if isinstance(rng, torch.Generator):
        return draw(rng, shape)
    return torch.cat([draw(own, (count, *shape[1:])) for own, count in rng.groups])
