"""The launch files: what they declare and use. test/ros launches them for real."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "launch"
FILES = sorted(FOLDER.glob("*.launch.py"))
#: What the issue of the package promises of the node's launch file.
PROMISED = {"namespace", "params_file", "use_sim_time", "autostart", "log_level", "respawn", "image"}


def described(path: Path) -> Any:
    """The launch description of a file, made as `ros2 launch` makes it."""
    pytest.importorskip("launch_ros", reason="needs a real ROS 2: no package launch_ros")
    spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description()


def arguments(path: Path) -> dict[str, str]:
    """Names and help texts in ARGUMENTS, read without running the file."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "ARGUMENTS":
            assert isinstance(statement.value, ast.Dict)
            return {
                ast.literal_eval(key): ast.literal_eval(value.elts[1])
                for key, value in zip(statement.value.keys, statement.value.values, strict=True)
                if key is not None and isinstance(value, ast.Tuple)
            }
    raise AssertionError(f"{path} has no ARGUMENTS")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_launch_file_imports_launch_alone(path: Path) -> None:
    """`ros2 launch` runs it with the system's Python, which may have no torch."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in ("launch", "launch_ros")
        assert not isinstance(node, ast.Import)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_argument_is_explained_and_used(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    for name, text in arguments(path).items():
        assert text.endswith("."), f"{name}: {text!r}"
        used = f'LaunchConfiguration("{name}")' in source or name in source.partition("passed = (")[2].partition(")")[0]
        assert used, f"{path.name} declares {name} and does not use it"


def test_the_node_has_every_argument_that_is_promised() -> None:
    assert arguments(FOLDER / "multi_dnn.launch.py").keys() >= PROMISED


def test_the_replay_asks_for_its_bag_and_passes_on_what_the_node_knows() -> None:
    node, replay = (arguments(FOLDER / name) for name in ("multi_dnn.launch.py", "replay.launch.py"))
    assert replay.keys() & node.keys() == {"namespace", "params_file", "image", "compressed_image"}
    declared = {item.name: item for item in described(FOLDER / "replay.launch.py").get_launch_arguments()}
    assert [name for name, item in declared.items() if not item.default_value] == ["bag"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_declares_what_it_says(path: Path) -> None:
    declared = {item.name: item.description for item in described(path).get_launch_arguments()}
    said = arguments(path)
    assert {name: declared[name] for name in said} == said


def test_show_args_teaches() -> None:
    pytest.importorskip("launch_ros", reason="needs a real ROS 2: no package launch_ros")
    for path in FILES:
        done = subprocess.run(
            ["ros2", "launch", str(path), "--show-args"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        for name, text in arguments(path).items():
            assert f"'{name}':" in done.stdout
            assert text in " ".join(done.stdout.split())
