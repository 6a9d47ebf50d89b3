"""Checkpoints that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_disk import small_disk

from multi_dnn_ros.training import checkpoint


@pytest.mark.parametrize("limit_bytes", [100, 1_000_000])
def test_the_error_of_the_system_is_named_and_the_last_checkpoint_is_kept(limit_bytes: int, tmp_path: Path) -> None:
    """As on a disk that becomes full: a limit of the file size ends the write in the middle. PyTorch's writer then
    raises an error about file positions.
    """
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"done": 1}, {})
    before = path.read_bytes()
    with small_disk(limit_bytes), pytest.raises(checkpoint.TrainingError) as raised:
        checkpoint.save(path, {"weight": torch.zeros(1_000_000)}, {})
    assert f"{path}: checkpoint cannot be written ([Errno 27] File too large)" in str(raised.value)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
