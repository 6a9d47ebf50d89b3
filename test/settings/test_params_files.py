"""A node whose parameter file has no parameters for it must exit, not run with defaults."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from fork_server import ForkServer
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.demo.children import Child, loopback_environment
from multi_dnn_ros.settings.params_sections import (
    ParamsFileError,
    applies_to,
    files_in,
    full_name,
    require_parameters_in_any,
)

FOREIGN = "lidar:\n  ros__parameters: {rate: 10}\n"
EXECUTABLE = "import sys; from multi_dnn_ros.executable import main; sys.exit(main())"


def written(folder: Path, text: str) -> Path:
    path = folder / "robot.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["No such file"]),
        ("", ["the file is empty"]),
        ("# device: cuda\n", ["the file is empty"]),
        ("/**: [\n", ["not a parameter file", "line 2"]),
    ],
)
def test_a_file_that_is_missing_empty_or_not_yaml(
    tmp_path: Path, text: str | None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "robot.yaml"
    if text is not None:
        path.write_text(text)
    for arguments in (["run", "--params-file", str(path)], ["run", "--ros-args", "--params-file", str(path)]):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"multi-dnn run: error: parameter file {path} of node multi_dnn: ")
        assert error.count("\n") == 1
        assert [word for word in words if word not in error] == []


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (FOREIGN, [], ["no parameters for node /multi_dnn; its sections are for /lidar"]),
        (f"{FOREIGN}multi_dnn:\n  ros__parameters: {{}}\n", [], ["node /multi_dnn; its section /multi_dnn is empty"]),
        (
            "multi_dnn:\n  ros__parameters: {workers: 1}\n",
            ["-r", "__ns:=/robot"],
            ["node /robot/multi_dnn; its sections are for /multi_dnn; section names are absolute: `/robot/"],
        ),
        ("/*:\n  ros__parameters: {workers: 1}\n", ["-r", "__ns:=/robot"], ["for node /robot/multi_dnn", "for /*"]),
        ("multi_dnn:\n  ros__parameters: {workers: 1}\n", ["-r", "__node:=dnns"], ["no parameters for node /dnns"]),
    ],
)
def test_a_file_without_a_section_for_the_node(
    tmp_path: Path, domain: int, text: str, arguments: list[str], words: list[str], fork_server: ForkServer
) -> None:
    """Tests the executable of the node, which every way to start it uses."""
    path = written(tmp_path, text)
    command = [sys.executable, "-c", EXECUTABLE, "--ros-args", "--params-file", str(path), *arguments]
    done = fork_server.run(command, env={**os.environ, **loopback_environment(domain)}, timeout=120)
    assert done.returncode == 1, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"multi_dnn_node: parameter file {path}: ")
    assert [word for word in words if word not in error] == []
    assert "Traceback" not in done.stderr


def log_until_configured(command: list[str], folder: Path, domain: int) -> str:
    """The log of a node with the DNN `object`, up to the line `configured: ...`."""
    with Child("node", command, folder / "node.log", loopback_environment(domain)) as node:
        deadline = time.monotonic() + 120.0
        while "configured: DNNs object;" not in (log := node.log.read_text()):
            assert node.exit_code() is None, node.last_lines(20)
            assert time.monotonic() < deadline, node.last_lines(20)
            time.sleep(0.05)
    return log


@pytest.mark.usefixtures("forked_children")
def test_files_for_several_nodes(tmp_path: Path, domain: int) -> None:
    """`parameters=[common.yaml, robot.yaml]` of a launch file: sections of other nodes are allowed.

    A file without parameters for this node is a warning, and so is an unknown name, with the most similar known name.
    """
    common = tmp_path / "common.yaml"
    common.write_text(FOREIGN)
    own = written(
        tmp_path,
        f"{FOREIGN}robot:\n  multi_dnn:\n    ros__parameters: {{device: cpu, dnns: [object], "
        "dnn: {object: {backend: eager, jobs: 1}}, zoom_level: 3, threshold: 0.3}\n",
    )
    files = ["--params-file", str(common), "--params-file", str(own)]
    command = ["run", "--ros-args", "-r", "__ns:=/robot", *files]
    log = log_until_configured(command, tmp_path, domain)
    assert re.search(r"zoom_level: not a parameter of this node, ignored; the most similar name is \S+", log)
    assert "threshold: not a parameter of this node, ignored; the most similar name is dnn.object.iou_threshold" in log
    (line,) = (line for line in log.splitlines() if "no parameters for node" in line)
    assert "WARN" in line
    assert f"parameter file {common}: no parameters for node /robot/multi_dnn; its sections are for /lidar" in line


def test_one_of_several_files_must_have_parameters_for_the_node(tmp_path: Path) -> None:
    texts = {
        "lidar.yaml": FOREIGN,
        "nothing.yaml": "multi_dnn:\n  ros__parameters: {}\n",
        "own.yaml": "/**:\n  ros__parameters: {a: 1}\n",
    }
    paths = [tmp_path / name for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    assert require_parameters_in_any([], "/multi_dnn") == []
    assert require_parameters_in_any(paths[2:], "/multi_dnn") == []
    assert len(require_parameters_in_any(paths, "/multi_dnn")) == 2
    with pytest.raises(ParamsFileError, match=r"lidar.yaml: no parameters .*; parameter file .*nothing.yaml: no "):
        require_parameters_in_any(paths[:2], "/multi_dnn")
    for text in ("", "/**: [", None):  # an error, whatever the other files hold
        if text is None:
            paths[0].unlink()
        else:
            paths[0].write_text(text)
        with pytest.raises(ParamsFileError, match=r"parameter file .*lidar\.yaml of node /multi_dnn: "):
            require_parameters_in_any(paths, "/multi_dnn")


@pytest.mark.parametrize(
    ("section", "nodes", "others"),
    [
        ("/**", ["/a", "/a/b", "/a/b/c"], []),
        ("/*", ["/a"], ["/a/b"]),
        ("/a", ["/a"], ["/ab", "/b/a", "/a/a"]),
        ("/**/a", ["/a", "/b/a", "/c/b/a"], ["/a/b", "/ba"]),
        ("/*/a", ["/b/a"], ["/a", "/c/b/a"]),
        ("/b/**", ["/b", "/b/a", "/b/c/a"], ["/a"]),
        ("/b/*/a", ["/b/c/a"], ["/b/a"]),
    ],
)
def test_wildcards_are_those_of_ros(section: str, nodes: list[str], others: list[str]) -> None:
    assert [node for node in (*nodes, *others) if applies_to(section, node)] == nodes


names = st.lists(st.sampled_from(["a", "b", "multi_dnn"]), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
patterns = st.lists(st.sampled_from(["a", "b", "multi_dnn", "*", "**"]), min_size=1, max_size=4)


@given(patterns, names)
def test_sections_apply_as_in_rclpy(parts: list[str], node: str) -> None:
    """rclpy/src/rclpy/node.cpp (Jazzy) converts the name of a section into this expression."""
    section = full_name(*parts)
    assert applies_to(section, node) == bool(re.fullmatch(section.replace("/*", r"(/\w+)"), node))


def test_files_are_found_among_the_ros_arguments_only() -> None:
    line = ["x", "--params-file", "no", "--ros-args", "--params-file", "a", "-p", "b:=1", "--", "--params-file", "no"]
    assert files_in([*line, "--ros-args", "--params-file", "b"]) == ["a", "b"]
    assert files_in(["--ros-args", "--params-file"]) == []
