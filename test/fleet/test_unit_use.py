"""Use of units that are GPUs, from the lines that nvidia-smi prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.fleet import unit_use
from multi_dnn_ros.fleet.unit_use import UnitUse, parse_use
from multi_dnn_ros.planning.batch_units import parse_units

#: In the order of nvidia-smi, which is not that of CUDA.
LINES = "0, GPU-b, 12\n1, GPU-a, 87\n"


def test_each_gpu_has_the_use_of_its_own_line() -> None:
    assert parse_use(LINES) == {"0": 0.12, "GPU-b": 0.12, "1": 0.87, "GPU-a": 0.87}
    assert parse_use("0, GPU-b, [N/A]\nNVIDIA-SMI has failed\n1, GPU-a, 87") == {"1": 0.87, "GPU-a": 0.87}


@pytest.mark.parametrize("ids", [("GPU-a", "GPU-b"), ("1", "0")])
def test_units_have_the_use_of_their_gpus(
    ids: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{LINES}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(unit_use, "nvidia_smi_id", ids.__getitem__)
    monkeypatch.setattr(unit_use, "_GPU_SAMPLE_S", 0.0)
    use = UnitUse(parse_units("cuda:0,cuda:1"))
    use.sample([[], []])
    assert use.take() == [0.87, 0.12]
    mixed = UnitUse(parse_units("cpu,cuda:1"))
    mixed.sample([[], []])
    assert mixed.take() == [0.0, 0.12]
