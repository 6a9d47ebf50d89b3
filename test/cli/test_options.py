"""Values of options that replace parameters of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import main

_DEVICES = "auto, cpu, cpu:<threads>, cuda, cuda:<number>"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["build", "--device", "foo"], f"--device is 'foo'; allowed: {_DEVICES}"),
        (["profile", "fit", "--device", "cpu:0"], f"--device is 'cpu:0'; allowed: {_DEVICES}"),
        (["benchmark", "soak", "--device", "gpu"], f"--device is 'gpu'; allowed: {_DEVICES}"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_given(
    command: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert capsys.readouterr().err.strip().endswith(error)
    assert not list(tmp_path.iterdir())
