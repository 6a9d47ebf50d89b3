"""Checkpoints that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from multi_dnn_ros.training import checkpoint


@pytest.mark.parametrize("elements", [10, 4_000_000])
def test_a_full_disk_is_named_and_the_last_checkpoint_is_kept(elements: int, tmp_path: Path) -> None:
    """PyTorch's writer hides the error of the system if the disk becomes full within a tensor."""
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"done": 1}, {})
    before = path.read_bytes()
    path.with_name("checkpoint.pt.part").symlink_to("/dev/full")
    with pytest.raises(checkpoint.TrainingError, match=r"checkpoint\.pt: checkpoint cannot be written .*No space left"):
        checkpoint.save(path, {"weight": torch.zeros(elements)}, {})
    assert path.read_bytes() == before
    assert not path.with_name("checkpoint.pt.part").is_symlink()
