"""`multi-dnn benchmark paper --important` on a CPU, with small networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import main


def test_an_important_dnn_is_measured_alone_and_beside_a_background(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "important.json"
    command = ["benchmark", "paper", "--important", "resnet18", "--set", "small", "--device", "cpu", "--jobs", "3"]
    assert main([*command, "--seconds", "0.2", "--repeats", "1", "--output", str(output)]) == 0
    (found,) = json.loads(output.read_text())["networks"]
    assert list(found["summary"]) == ["alone", "fifo", "priority", "edf", "bare loop"]
    for name, figures in found["summary"].items():
        assert (figures["background_hz"] > 0.0) is (name != "alone")
        assert name == "bare loop" or 0.0 < figures["p50_ms"] <= figures["p99_ms"]
    assert "| resnet18 " in capsys.readouterr().out
