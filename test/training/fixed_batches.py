"""Batches of arrays without augmentation, for tests of the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from multi_dnn_ros.training import distributed


class FixedBatches:
    """arrays: (N, ...) by name; "image" is (N, 3, h, w) uint8. Each process gets its share of every batch."""

    def __init__(self, arrays: Mapping[str, Tensor], batch_size: int, seed: int) -> None:
        self.arrays, self.batch_size, self.seed = dict(arrays), batch_size, seed

    def __len__(self) -> int:
        return len(self.arrays["image"]) // self.batch_size

    def epoch(self, number: int) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed * 1000 + number)
        order = torch.randperm(len(self.arrays["image"]), generator=generator)
        rank, world = distributed.rank(), distributed.world()
        first, last = rank * self.batch_size // world, (rank + 1) * self.batch_size // world
        for k in range(len(self)):
            rows = order[k * self.batch_size + first : k * self.batch_size + last]
            batch = {name: array[rows] for name, array in self.arrays.items()}
            yield {**batch, "image": batch["image"].float() / 255.0}
