"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, here and in processes that a test starts, so that sums are computed in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy images of two colours, which are the classes."""
    root = tmp_path_factory.mktemp("colours")
    rng = np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 6)):
        for name, channel in (("green", 1), ("red", 2)):
            (root / part / name).mkdir(parents=True)
            for k in range(count):
                image = rng.integers(0, 90, (16, 16, 3), dtype=np.uint8)
                image[..., channel] += 120
                cv2.imwrite(str(root / part / name / f"{k}.png"), image)
    return root
