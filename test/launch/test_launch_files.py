"""The arguments and imports of the launch files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "launch"
FILES = sorted(FOLDER.glob("*.launch.py"))


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
def test_a_launch_file_imports_little(path: Path) -> None:
    """`ros2 launch` imports it with the Python of the system, which may lack torch, and should start quickly."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            ours = node.module == "multi_dnn_ros.settings.params_file"
            assert ours or (node.module or "").split(".")[0] in ("launch", "launch_ros")
        assert not isinstance(node, ast.Import)


def test_the_modules_that_launch_files_import_need_only_yaml() -> None:
    heavy = ("torch", "cv2", "numpy", "rclpy", "pydantic")
    program = f"import sys, multi_dnn_ros.settings.params_file; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


FOREIGN = "lidar:\n  ros__parameters: {rate: 10}\n"


@pytest.mark.ros
@pytest.mark.parametrize("file", [path.name for path in FILES])
@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (None, [], ["No such file"]),
        ("", [], ["the file is empty"]),
        (FOREIGN, [], ["no parameters for node /multi_dnn; its sections are for /lidar"]),
        (
            "multi_dnn:\n  ros__parameters: {workers: 1}\n",
            ["namespace:=robot"],
            ["no parameters for node /robot/multi_dnn"],
        ),
    ],
)
def test_a_params_file_without_parameters_for_the_node_fails_the_launch(
    tmp_path: Path, file: str, text: str | None, arguments: list[str], words: list[str]
) -> None:
    params = tmp_path / "robot.yaml"
    if text is not None:
        params.write_text(text)
    if file == "replay.launch.py":
        arguments = [*arguments, "bag:=nowhere"]
    command = ["ros2", "launch", str(FOLDER / file), f"params_file:={params}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode != 0, output
    errors = [line for line in output.splitlines() if "[ERROR]" in line]
    assert len(errors) == 1, output
    assert f"parameter file {params}" in errors[0]
    assert [word for word in words if word not in errors[0]] == []
    assert "process started" not in output


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_argument_that_is_used_is_declared(path: Path) -> None:
    """Otherwise the launch fails, but only where launch_ros is installed."""
    used = set(re.findall(r'LaunchConfiguration\("(\w+)"\)', path.read_text(encoding="utf-8")))
    assert used
    assert used - arguments(path).keys() == set()


def test_the_launch_file_of_the_robot_passes_on_every_argument_of_the_node() -> None:
    source = (FOLDER / "robot.launch.py").read_text(encoding="utf-8")
    passed = source.partition("launch_arguments={")[2].partition("}.items()")[0]
    node = arguments(FOLDER / "multi_dnn.launch.py")
    assert set(re.findall(r'^ +"(\w+)":', passed, re.M)) == node.keys(), "complete launch/robot.launch.py"


@pytest.mark.ros
def test_show_args_lists_every_argument() -> None:
    for path in FILES:
        done = subprocess.run(
            ["ros2", "launch", str(path), "--show-args"], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        for name, text in arguments(path).items():
            assert f"'{name}':" in done.stdout
            assert text in " ".join(done.stdout.split())
