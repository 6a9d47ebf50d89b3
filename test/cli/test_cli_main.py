"""The command's help, errors and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from multi_dnn_ros import __version__
from multi_dnn_ros.cli.main import VERBS, build_parser, main, split_ros_args
from multi_dnn_ros.cli.run import ros_arguments


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], *([verb] for verb in VERBS)):
        with pytest.raises(SystemExit) as end:
            main([*arguments, "--help"])
        assert end.value.code == 0
        text = capsys.readouterr().out
        assert "examples:" in text
        assert " ".join(["multi-dnn", *arguments]) in text
    assert [verb for verb in VERBS if not re.search(rf"^ +{verb}\b", build_parser().format_help(), re.MULTILINE)] == []


def test_help_imports_no_large_library() -> None:
    """No verb imports a large library before it runs."""
    program = (
        "import sys; from multi_dnn_ros.cli.main import build_parser; build_parser().format_help();"
        "print([name for name in ('torch', 'cv2', 'numpy', 'rclpy', 'rosbags', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_command_imports_no_other_command() -> None:
    """Importing the others would take a sixth of the time until the node is on the graph."""
    program = (
        "import sys; from multi_dnn_ros.cli.main import VERBS, main;"
        "code = main(['run', '--params-file', '/none.yaml']);"
        "print(code, [verb for verb in VERBS if f'multi_dnn_ros.cli.{verb}' in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1 ['run']", result.stderr


def test_arguments_that_are_not_utf8_are_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decompose", "builtin:object", "--output", "small\udcff.safetensors"]) == 2
    assert r"argument 'small\xff.safetensors' is not UTF-8; rename the file or folder" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_replaced(closed: str, tmp_path: Path) -> None:
    """Otherwise libraries that write to stderr write into the first files that the command opens, or one of the
    processes that it starts.
    """
    child = "import os; [os.fstat(number) for number in range(3)]"
    program = (
        "import os, subprocess, sys; from multi_dnn_ros.cli import main as cli;"
        "cli.build_parser = lambda *verbs: sys.exit(0 if os.open('new', os.O_CREAT) > 2 and sys.stderr and sys.stdout "
        f"and not subprocess.run([sys.executable, '-c', '{child}']).returncode else 5);"
        "cli.main([])"
    )
    command = f'"$0" -c "$1" {closed}'
    result = subprocess.run(["sh", "-c", command, sys.executable, program], cwd=tmp_path, check=False)
    assert result.returncode == 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"multi-dnn {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["camera"], "SOURCE"),
        (["camera", "scenes", "--size", "640"], "'640' is not a size such as 640x480"),
        (["camera", "scenes", "--size", "0x480"], "'0x480'"),
        (["camera", "scenes", "--rate", "-1"], "'-1' is not a number above 0"),
        (["camera", "scenes", "--rate", "1e9"], "'1e9' is not a number above 0 and below 1e9"),
        (["camera", "scenes", "--count", "9" * 20], "is not an integer of at least 1 and at most 18 digits"),
        (["camera", "scenes", "--topic", "a b"], "'a b' is not a topic name"),
        (["camera", "scenes", "--topic", "front//image"], "'front//image' is not a topic name"),
        (["profile", "fit", "--rate", "front"], "'front' is not CAMERA=HZ"),
        (["camera", "scenes", "--rate", "nan"], "'nan'"),
        (["camera", "scenes", "--count", "0"], "'0' is not an integer of at least 1"),
        (["camera", "scenes", "--camera", "Front left"], "'Front left' is not a camera name"),
        (["camera", "scenes", "--encoding", "rgb9"], "rgb9"),
        (["replay", "in"], "OUT_BAG"),
        (["replay", "in", "out", "--topic", "front"], "'front' is not CAMERA:=/TOPIC"),
        (["demo", "--seconds", "soon"], "'soon'"),
    ],
)
def test_wrong_usage_names_the_argument(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["camera", "nowhere.mp4"], 1, "source 'nowhere.mp4' does not exist"),
        (["camera", "/dev/video99"], 1, "/dev/video99"),
        (["camera", "nowhere.mp4", "--truth"], 2, "--truth is for the source `scenes`"),
        (["camera", "scenes", "--size", "20x20"], 1, "20x20"),
        (["replay", "nowhere", "out"], 1, "bag nowhere does not exist"),
        (["replay", "nowhere", "."], 2, "OUT_BAG . already exists"),
        (["replay", "in", "out", "--params-file", "nowhere.yaml"], 1, "nowhere.yaml"),
        (["replay", "in", "out", "--device", "abacus"], 2, "--device is 'abacus'; allowed: auto, cpu"),
        (["replay", "in", "out", "--ros-args", "-r", "a:=b"], 2, "--ros-args are for commands that start a ROS node"),
        (["run", "--params-file", "nowhere.yaml"], 1, "parameter file nowhere.yaml of node multi_dnn: No such file"),
        (["replay", "in", "out", "--node", "dnns"], 2, "--node is 'dnns'; expected a full name such as /multi_dnn"),
        (["replay", "in", "out", "--node", "/robot/"], 2, "--node is '/robot/'; expected a full name"),
        (["replay", "in", "out", "--cluster", "--node", "/a b"], 2, "--node is '/a b'; expected a full name"),
        (["demo", "--params-file", "nowhere.yaml"], 1, "nowhere.yaml"),
        (["demo", "--size", "63x480"], 2, "--size 63x480: each side of the road's images must be 64 to 4096 pixels"),
        (["inspect", "nowhere.onnx"], 1, "argument MODEL is 'nowhere.onnx': there is no such file"),
    ],
)
def test_failure_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: object
) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[attr-defined]
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(f"multi-dnn {arguments[0]}: error: ")
    assert text in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_each_problem_of_a_parameter_file_is_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text('/**:\n  ros__parameters:\n    autostart: 1\n    workers: "two"\n')
    assert main(["build", str(file)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"multi-dnn build: error: {file}: parameter autostart is 1; allowed: true, false",
        f"multi-dnn build: error: {file}: parameter workers is 'two'; allowed: int, 0 to 16",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "builtin:lane", "--data", "road"],
        ["evaluate", "--params-file", "config/multi_dnn.yaml", "--dnn", "lane", "--data", "road"],
        ["retrain", "builtin:lane", "--output", "out.safetensors", "--data", "road"],
        ["profile", "layers", "builtin:lane"],
        ["profile", "training", "builtin:lane"],
        ["benchmark", "paper"],
    ],
    ids=" ".join,
)
def test_a_missing_device_is_reported_as_the_option(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--device", "cuda:99"]) == 1
    assert ": error: --device is 'cuda:99', but PyTorch sees" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["profile", "layers", "builtin:lane", "--backend", "cuda_graph"],
         "--backend is 'cuda_graph', but the device is cpu; allowed: auto, "),
        (["evaluate", "builtin:lane", "--data", "road", "--served", "--precision", "fp16"],
         "--precision is 'fp16'; allowed with backend eager on cpu: auto, "),
    ],
)  # fmt: skip
def test_an_impossible_backend_or_precision_is_reported_as_the_option(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--device", "cpu"]) == 1
    assert f": error: {text}" in capsys.readouterr().err


def test_the_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--debug", "camera", "nowhere"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("MULTI_DNN_DEBUG", "1")
    assert main(["camera", "nowhere"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_with_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("multi_dnn_ros.cli.replay.run", interrupted)
    assert main(["replay", "in", "out"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_ros_arguments_are_separated() -> None:
    assert split_ros_args(["run", "--ros-args", "-p", "a:=1", "--", "--params-file", "x"]) == (
        ["run", "--params-file", "x"],
        ["-p", "a:=1"],
    )
    assert split_ros_args(["run", "--ros-args", "--log-level", "debug"]) == (["run"], ["--log-level", "debug"])


def test_our_parameter_file_comes_first(tmp_path: Path) -> None:
    """Later arguments override it; a file among the ROS arguments replaces ours."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("")
    assert ros_arguments(mine, ["-p", "a:=1"]) == ["--ros-args", "--params-file", str(mine), "-p", "a:=1"]
    default = ros_arguments(None, [])
    assert default[:2] == ["--ros-args", "--params-file"]
    assert default[2].endswith("multi_dnn.yaml")
    assert ros_arguments(None, ["--params-file", "theirs"]) == ["--ros-args", "--params-file", "theirs"]


def test_a_closed_pipe_causes_no_traceback() -> None:
    """`multi-dnn ... | head` must end quietly."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from multi_dnn_ros.cli import main, run\n"
         "def talk(args):\n  while True: print('x' * 1000)\n"
         "run.run = talk\nraise SystemExit(main.main(['run']))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
