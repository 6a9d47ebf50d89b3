"""Augmentation of road images: image and mask stay valid and match."""

from __future__ import annotations

import torch

from multi_dnn_ros.training.road_augmentation import augment_roads


def road(count: int = 16) -> dict[str, torch.Tensor]:
    """Dark road with two white lines, and their mask."""
    mask = torch.zeros(count, 1, 96, 160, dtype=torch.uint8)
    mask[..., 30:, 50:56] = 255
    mask[..., 30:, 110:116] = 255
    image = 0.25 + 0.6 * (mask.float() / 255).expand(-1, 3, -1, -1)
    return {"image": image, "mask": mask}


def varied(seed: int, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return augment_roads(batch, torch.Generator().manual_seed(seed))


def test_shapes_types_and_ranges() -> None:
    batch = road()
    found = varied(1, batch)
    assert found["image"].shape == batch["image"].shape
    assert found["mask"].dtype == torch.uint8
    assert found["mask"].shape == batch["mask"].shape
    assert torch.isfinite(found["image"]).all()
    assert 0.0 <= found["image"].min() <= found["image"].max() <= 1.0


def test_an_epoch_can_be_repeated_and_images_differ() -> None:
    first, second, other = varied(1, road()), varied(1, road()), varied(2, road())
    assert torch.equal(first["image"], second["image"])
    assert torch.equal(first["mask"], second["mask"])
    assert not torch.equal(first["image"], other["image"])
    assert len({tuple(image.flatten()[:200].tolist()) for image in first["image"]}) == len(first["image"])


def test_the_mask_follows_the_lines() -> None:
    contrasts = []
    for seed in range(6):
        found = varied(seed, road())
        grey, lane = found["image"].mean(1, keepdim=True), found["mask"] > 128
        for image, line in zip(grey, lane, strict=True):
            if line.sum() > 50:
                contrasts.append(float(image[line].mean() - image[~line].mean()))
    assert len(contrasts) > 60
    assert sum(contrast > 0.05 for contrast in contrasts) > 0.9 * len(contrasts)


def test_road_without_lines_gets_none() -> None:
    batch = road()
    batch["mask"].zero_()
    assert not varied(3, batch)["mask"].any()
