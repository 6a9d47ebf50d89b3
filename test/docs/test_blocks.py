"""The code blocks of the documents: shell and Python blocks run on this machine, YAML blocks are valid parameters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import BLOCKS, MARKS, OWN_TESTS, PAGES, ROOT, RUN, SHOWN, Block

from multi_dnn_ros.common.processes import loopback_environment
from multi_dnn_ros.settings.params_file import read_params_file

_TIMEOUT_S = 120


def unmarked(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.marks and block.page not in OWN_TESTS]


def test_every_block_has_a_known_language_and_known_marks() -> None:
    wrong = [block.where for block in BLOCKS if block.language not in RUN + SHOWN or not set(block.marks) <= set(MARKS)]
    assert not wrong, f"languages: {', '.join(RUN + SHOWN)}; marks: {', '.join(MARKS)}"


def test_pages_that_are_left_out_have_tests_of_their_own() -> None:
    assert [page for page, test in OWN_TESTS.items() if page in PAGES and not (ROOT / test).is_file()] == []


def test_the_marks_are_explained() -> None:
    """A contributor finds them where the tests of documents are described."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [mark for mark in MARKS if f"`{mark}`" not in text] == []


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader: `multi-dnn` and `python` are those of this checkout, caches are empty."""
    folder = tmp_path_factory.mktemp("shell")
    programs = {"multi-dnn": "-m multi_dnn_ros.cli.main", "python": "", "python3": ""}
    for name, arguments in programs.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


@pytest.mark.parametrize("page", sorted({block.page for block in unmarked("bash")}))
def test_the_commands_of_a_page_run(page: str, shell: dict[str, str], domain: int, tmp_path: Path) -> None:
    """One after another in one folder, so that a block may use what an earlier one of its page has written."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for block in (block for block in unmarked("bash") if block.page == page):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path, env={**shell, **loopback_environment(domain)}, capture_output=True, text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.where}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("block", unmarked("python"), ids=lambda block: block.where)
def test_python_runs(block: Block, shell: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.where}: {done.stderr}"


@pytest.mark.parametrize("block", unmarked("yaml"), ids=lambda block: block.where)
def test_yaml_is_a_parameter_file_without_mistakes(
    block: Block, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(block.text)
    read_params_file(path)
    assert not caplog.text, block.where
