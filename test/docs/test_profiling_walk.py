"""The commands of docs/profiling.md for a predictor, with fewer rounds: each takes what the one before has written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pages import BLOCKS

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.reporting import cpu_count

#: By action of `multi-dnn profile`. Levels: those that the fit check asks for are trained.
QUICK = {
    "contention": ["--device", "cpu", "--levels", f"0,1,{cpu_count()}", "--repeats", "2"],
    "learn": [],
    "layers": ["--device", "cpu", "--repeats", "2"],
    "fit": ["--device", "cpu"],
}


def commands() -> list[list[str]]:
    """Arguments of each command of the block that trains a predictor."""
    (block,) = (each for each in BLOCKS if each.page == "docs/profiling.md" and "profile learn" in each.text)
    return [shlex.split(line)[1:] for line in block.text.splitlines()]


def test_the_actions_are_those_of_the_page() -> None:
    assert [words[:2] for words in commands()] == [["profile", action] for action in QUICK]


@pytest.mark.long  # small networks: test/acceptance/test_profile.py
def test_no_command_refuses_the_predictor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for words in commands():
        code = main([*words, *QUICK[words[1]]])
        output = capsys.readouterr()
        assert code == 0 or words[1] == "fit", output.err  # which exits with 1 if this machine is too slow
        assert "measured, because" not in output.out
    assert "does not cover" not in caplog.text
