"""The command line itself: help, wrong usage, errors, exit codes, and what comes before a command's own work."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multi_dnn_ros import cli
from multi_dnn_ros.cli.main import GROUPS, MODULES, VERBS, build_parser, main


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from parsers(each)


PARSERS = {parser.prog: parser for parser in parsers(build_parser())}
COMMANDS = {name: parser for name, parser in PARSERS.items() if name != "multi-dnn"}
#: Every option and argument, with the name of its command.
ACTIONS = [
    pytest.param(name, action, id=f"{name} {action.dest}")
    for name, parser in PARSERS.items()
    for action in parser._actions
    if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_what_the_command_does_and_ends_with_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (COMMANDS[name].description or "").partition("\n\n")[0]
    assert re.fullmatch(r"[A-Z][a-z]+,? [^.]+\.", first), first
    assert re.search(rf"^  {name}( |$)", COMMANDS[name].epilog or "", re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "60")
    assert "multi-\n" not in COMMANDS[name].format_help()  # commands can be copied


@pytest.mark.parametrize(("name", "action"), ACTIONS)
def test_every_option_has_help_with_its_default_and_unit(name: str, action: argparse.Action) -> None:
    text = action.help or ""
    assert re.match(r"[a-zA-Z`]", text)
    optional = bool(action.option_strings) and not action.required and action.nargs != 0
    if optional and not isinstance(action, argparse._AppendAction) and action.default not in (None, [], ""):
        assert "default: " in text
    units = {"S": "second", "MIN": "minute", "HZ": "per second|Hz", "WxH": "pixel"}
    assert re.search(units.get(str(action.metavar), ""), text)


def test_there_are_at_most_90_options_in_commands_that_are_all_listed() -> None:
    options = {option for parameter in ACTIONS for option in parameter.values[1].option_strings}
    assert len(options) <= 90
    text = build_parser().format_help()
    assert [heading for heading in GROUPS if f"\n{heading}:\n" not in text] == []
    assert [verb for verb in VERBS if len(re.findall(rf"^  {verb} {{2,}}\w", text, re.MULTILINE)) != 1] == []
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(cli.__file__).parent.glob("*.py")}
    assert {name for name, text in texts.items() if "\ndef add_parser(" in text} == {
        MODULES.get(verb, verb) for verb in VERBS
    }


def test_help_imports_no_large_library_and_a_command_no_other_command() -> None:
    """Otherwise help takes seconds, and the node a sixth longer until it is on the graph."""
    program = (
        "import sys; from multi_dnn_ros.cli.main import VERBS, build_parser, main;"
        "code = main(['run', '--params-file', '/none.yaml']);"
        "print(code, [verb for verb in VERBS if f'multi_dnn_ros.cli.{verb}' in sys.modules]);"
        "before = set(sys.modules); build_parser().format_help();"
        "print({'torch', 'cv2', 'numpy', 'rclpy', 'rosbags'} & set(sys.modules) - before)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["1 ['run']", "set()"], result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["camera", "scenes", "--size", "640"], "--size: '640' is not a size such as 640x480"),
        (["camera", "scenes", "--rate", "nan"], "'nan'"),
        (["camera", "scenes", "--count", "9" * 20], "is not an integer of at least 1 and at most 18 digits"),
        (["camera", "scenes", "--topic", "front//image"], "--topic: 'front//image' is not a topic name"),
        (["camera", "scenes", "--camera", "Front left"], "--camera: 'Front left' is not a camera name"),
        (["replay", "in", "out", "--device", "abacus"], "'abacus' is not one of auto, cpu, cpu:<threads>, cuda, cuda"),
        (["profile", "fit", "--rate", "front"], "'front' is not CAMERA=HZ"),
        (["replay", "in", "out", "--topic", "front"], "'front' is not CAMERA:=/TOPIC"),
        (["replay", "in", "out", "--node", "/robot/"], "--node: '/robot/' is not a full name"),
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
        (["camera", "nowhere.mp4", "--truth"], 2, "--truth is for the source `scenes`"),
        (["camera", "scenes", "--size", "20x20"], 1, "20x20"),
        (["replay", "nowhere", "."], 2, "OUT_BAG . already exists"),
        (["replay", "in", "out", "--ros-args", "-r", "a:=b"], 2, "--ros-args are for commands that start a ROS node"),
        (["demo", "--size", "63x480"], 2, "--size 63x480: each side of the road's images must be 64 to 4096 pixels"),
        (["evaluate", "builtin:lane", "--data", "road", "--device", "cuda:99"], 1, "--device is 'cuda:99', but"),
        (["benchmark", "paper", "--device", "cuda:99"], 1, "--device is 'cuda:99', but PyTorch sees"),
        (["profile", "layers", "builtin:lane", "--device", "cpu", "--backend", "cuda_graph"], 1,
         "--backend is 'cuda_graph', but the device is cpu; allowed: auto, "),
        (["evaluate", "builtin:lane", "--data", "road", "--device", "cpu", "--served", "--precision", "fp16"], 1,
         "--precision is 'fp16'; allowed with backend "),
    ],
)  # fmt: skip
def test_failure_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith(f"multi-dnn {arguments[0]}: error: ")
    assert text in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


CONFIG = """\
/multi_dnn:
  ros__parameters: {cameras: [front], dnns: [lane], device: cpu, dnn: {lane: {model: lane.onnx}}}
"""


@pytest.mark.parametrize(
    ("text", "arguments", "code", "expected"),
    [
        (None, (), 1, "nowhere.yaml"),
        ("/multi_dnn: {ros__parameters: {device: abacus}}", (), 1, "abacus"),
        (CONFIG.replace("lane.onnx", "lane.onnx, backend: rocket"), (), 1, "rocket"),
        (CONFIG.replace("lane.onnx", "missing.onnx"), (), 1, "missing.onnx"),
        (CONFIG, ("--output", "."), 2, "--output is ., which is a folder; expected a file"),
    ],
)
def test_a_parameter_file_that_cannot_be_built_is_one_line(
    text: str | None, arguments: tuple[str, ...], code: int, expected: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, forked_engines: None,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = tmp_path / "nowhere.yaml"
    if text is not None:
        config.write_text(text)
    assert main(["build", str(config), *arguments]) == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("multi-dnn build: error: ")
    assert expected in error


def test_each_problem_of_a_parameter_file_is_a_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "robot.yaml"
    file.write_text('/**:\n  ros__parameters:\n    autostart: 1\n    workers: "two"\n')
    assert main(["build", str(file)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"multi-dnn build: error: {file}: parameter autostart is 1; allowed: true, false",
        f"multi-dnn build: error: {file}: parameter workers is 'two'; allowed: int, 0 to 16",
    ]


def test_ctrl_c_ends_with_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("multi_dnn_ros.cli.replay.run", interrupted)
    assert main(["replay", "in", "out"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "node"),
    [
        (["--params-file", "mine.yaml", "--ros-args", "-p", "a:=1"], ["--params-file", "mine.yaml", "-p", "a:=1"]),
        (["--ros-args", "-p", "a:=1", "--", "--params-file", "x"], ["--params-file", "x", "-p", "a:=1"]),
        (["--ros-args", "--params-file", "theirs"], ["--params-file", "theirs"]),
    ],
)
def test_the_nodes_arguments_override_our_parameter_file(
    arguments: list[str], node: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes later on the node's command line overrides what is before it."""
    given: list[list[str]] = []
    monkeypatch.setattr("multi_dnn_ros.ros.process.run", lambda words: given.append(words) or 0)
    assert main(["run", *arguments]) == 0
    assert given == [["--ros-args", *node]]


def test_a_closed_pipe_causes_no_traceback() -> None:
    """`multi-dnn ... | head` must end quietly."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from multi_dnn_ros.cli import main, run\n"
         "def talk(args):\n  while True: print('x' * 1000)\n"
         "run.run = talk\nraise SystemExit(main.main(['run']))"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert process.stderr.read() == ""
    process.stderr.close()
