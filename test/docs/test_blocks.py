"""The code blocks of the documents: shell and Python blocks run on this machine, YAML blocks are valid parameters."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from pages import BLOCKS, MARKS, OWN_TESTS, ROOT, RUN, SHOWN, Block
from rclpy.context import Context
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray
from waiting import until

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.demo.children import loopback_environment
from multi_dnn_ros.settings.params_file import read_params_file

_TIMEOUT_S = 120


def unmarked(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language and not block.marks and block.page not in OWN_TESTS]


def test_every_block_has_a_known_language_and_known_marks() -> None:
    """Otherwise it would neither be run nor be left out for a reason."""
    wrong = [block.where for block in BLOCKS if block.language not in RUN + SHOWN or not set(block.marks) <= set(MARKS)]
    assert not wrong, f"languages: {', '.join(RUN + SHOWN)}; marks: {', '.join(MARKS)}"


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
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),  # of a sourced ROS 2
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def simple_commands(block: Block) -> list[list[str]] | None:
    """The arguments of each `multi-dnn` of a block that has nothing else; None for another block."""
    lines = block.text.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    if any(words[:1] not in ([], ["multi-dnn"]) for words in commands) or re.search(r"[|&;<>$*?~`(]", block.text):
        return None
    return [words[1:] for words in commands if words]


@pytest.mark.parametrize("page", sorted({block.page for block in unmarked("bash")}))
def test_the_commands_of_a_page_run(
    page: str, shell: dict[str, str], domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after another in one folder, so that a block may use what an earlier one of its page has written.

    Blocks of `multi-dnn` alone run in this process, where they need not import PyTorch again.
    """
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    for name, value in {"XDG_CACHE_HOME": shell["XDG_CACHE_HOME"], **loopback_environment(domain)}.items():
        monkeypatch.setenv(name, value)
    for block in (block for block in unmarked("bash") if block.page == page):
        commands = simple_commands(block)
        if commands is not None:
            assert [main(words) for words in commands] == [0] * len(commands), block.where
            continue
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


def test_a_topic_can_be_looked_at(shell: dict[str, str], domain: int) -> None:
    """The program of docs/installation.md, which does not end."""
    (block,) = (block for block in BLOCKS if block.page == "docs/installation.md" and block.language == "python")
    environment = {**shell, **loopback_environment(domain), "PYTHONUNBUFFERED": "1"}
    context = Context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        rclpy.init(context=context, domain_id=domain)
    node = rclpy.create_node("multi_dnn", context=context)
    publisher = node.create_publisher(Detection2DArray, "/multi_dnn/front/object/detections", 10)
    command = [sys.executable, "-c", block.text]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        try:
            until(publisher.get_subscription_count, "the program")
            publisher.publish(Detection2DArray(header=Header(frame_id="seen")))
            assert program.stdout is not None
            assert "frame_id='seen'" in program.stdout.readline()
        finally:
            program.kill()
            node.destroy_node()
            rclpy.shutdown(context=context)


@pytest.mark.parametrize("block", unmarked("yaml"), ids=lambda block: block.where)
def test_yaml_is_a_parameter_file_without_mistakes(
    block: Block, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(block.text)
    read_params_file(path)
    assert not caplog.text, block.where
