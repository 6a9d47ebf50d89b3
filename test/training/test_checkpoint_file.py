"""A checkpoint that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from multi_dnn_ros.training.checkpoint import TrainingError, save


def test_a_full_disk_is_named_and_the_last_checkpoint_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    state = {"network": {"weight": torch.zeros(300_000)}}
    save(path, state, {})
    before = path.read_bytes()
    (tmp_path / "a.ckpt.part").symlink_to("/dev/full")
    with pytest.raises(TrainingError) as error:
        save(path, state, {})
    assert str(error.value).startswith(f"{path}: checkpoint cannot be written (")
    assert "No space left on device" in str(error.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
