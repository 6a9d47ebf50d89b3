"""Data and jobs of the tests with real trainings."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from multi_dnn_ros.fleet.jobs_file import FleetJob


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two colours, which are the classes: 120 training images, so that batches of 20 differ."""
    root = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("val", 6)):
        for name, channel in (("green", 1), ("red", 2)):
            (root / part / name).mkdir(parents=True)
            for k in range(count):
                image = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
                image[..., channel] += rng.integers(20, 120, dtype=np.uint8)
                cv2.imwrite(str(root / part / name / f"{k}.png"), image)
    return root


@pytest.fixture
def job(colours: Path) -> FleetJob:
    """A classifier with batch normalization, without dropout.

    The learning rate is low, so that differences by rounding grow slowly.
    """
    return FleetJob(
        name="a",
        model="torchvision:resnet18",
        weights="random",
        num_classes=2,
        size=(32, 32),
        data=f"classes:{colours}",
        global_batch=20,
        steps=16,
        lr=2e-4,
        optimizer="sgd",
    )
