"""Augmentation of a whole batch whose groups of rows have random numbers of their own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from multi_dnn_ros.training.batches import (
    ArrayBatches,
    Augment,
    Batch,
    augment_classes,
    augment_detection,
    augment_lanes,
)
from multi_dnn_ros.training.random_rows import GroupedRandom

COUNTS = (3, 1, 4)
AUGMENTATIONS = {
    "classes": augment_classes,
    "mixed classes": partial(augment_classes, mix=0.7),
    "boxes": augment_detection,
    "lanes": augment_lanes,
}


def arrays(count: int, *, as_stored: bool) -> dict[str, Tensor]:
    """Rows with the truth of every task. as_stored: images are uint8, otherwise 0..1."""
    rng = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (count, 3, 16, 24), generator=rng, dtype=torch.uint8)
    return {
        "image": image if as_stored else image.float() / 255.0,
        "label": torch.arange(count) % 5,
        "boxes": torch.rand(count, 4, 4, generator=rng) * 16,
        "classes": torch.randint(-2, 3, (count, 4), generator=rng),
        "mask": torch.randint(0, 256, (count, 1, 16, 24), generator=rng, dtype=torch.uint8),
    }


def assert_same(found: Batch, expected: Batch) -> None:
    assert set(found) == set(expected)
    for name, tensor in found.items():
        # uint8: values that are rounded from equal ones may differ by one.
        torch.testing.assert_close(tensor.float(), expected[name].float(), atol=1.0 if name == "mask" else 1e-6, rtol=0)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_each_group_is_augmented_as_a_batch_of_its_own(name: str) -> None:
    augment: Augment = AUGMENTATIONS[name]
    batch = arrays(sum(COUNTS), as_stored=False)
    split = {key: tensor.split(COUNTS) for key, tensor in batch.items()}
    alone = [
        augment({key: parts[k] for key, parts in split.items()}, torch.Generator().manual_seed(k))
        for k in range(len(COUNTS))
    ]
    groups = tuple((torch.Generator().manual_seed(k), count) for k, count in enumerate(COUNTS))
    together = augment(batch, GroupedRandom(groups))
    assert_same(together, {key: torch.cat([part[key] for part in alone]) for key in alone[0]})


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_batch_is_the_same_however_its_tenths_are_divided(name: str) -> None:
    batches = ArrayBatches(arrays(70, as_stored=True), 23, seed=4, augment=AUGMENTATIONS[name])
    whole = list(batches.tenths(1, 1, 0, 10))
    parts = [list(batches.tenths(1, 1, *tenths)) for tenths in ((0, 1), (1, 4), (4, 10))]
    assert len(whole) == 2
    for k, batch in enumerate(whole):
        assert_same(batch, {key: torch.cat([part[k][key] for part in parts]) for key in batch})
