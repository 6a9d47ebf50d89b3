"""The command line itself: help, version, and what a wrong word or a missing file leads to."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import assert_one_error, multi_dnn, run_commands

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "run", "build", "camera", "replay", "inspect", "decompose", "retrain", "evaluate", "profile", "devices",
    "partition", "fleet", "demo", "benchmark",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("own_cache")


def test_help_lists_the_commands() -> None:
    done = multi_dnn("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^ +{command} +\S", done.stdout, re.MULTILINE), command


def test_help_of_every_command_explains_its_options() -> None:
    for command, done in run_commands({command: [command, "--help"] for command in COMMANDS}).items():
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: multi-dnn {command}")
        usage, _, text = done.stdout.partition("\n\n")
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage))
        explained = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", text, re.MULTILINE))
        assert options <= explained, f"{command}: {options - explained} are not explained"
        assert "--help" in explained
        assert f"  multi-dnn {command} " in text or f"  multi-dnn {command}\n" in text, f"{command} has no example"


def test_version() -> None:
    done = multi_dnn("--version")
    version = ElementTree.parse(ROOT / "package.xml").findtext("version")
    assert (done.returncode, done.stdout.split()[-1]) == (0, version)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "COMMAND"),
        (["nonsense"], "'nonsense'"),
        (["devices", "--nonsense"], "--nonsense"),
        (["replay", "one"], "OUT_BAG"),
        (["decompose", "builtin:object"], "--output"),
        (["decompose", "builtin:object", "--output", "x", "--ratio", "1.5"], "--ratio: '1.5'"),
        (["decompose", "builtin:object", "--output", "x", "--ranks", "best"], "--ranks: invalid choice: 'best'"),
        (["replay", "one", "two", "--storage", "zip"], "--storage: invalid choice: 'zip'"),
        (["camera", "scenes", "--rate", "-1"], "--rate: '-1'"),
        (["camera", "scenes", "--size", "0x0"], "--size: '0x0'"),
        (["camera", "scenes", "--encoding", "rgb9"], "--encoding: invalid choice: 'rgb9'"),
        (["camera", "scenes", "--count", "two"], "--count: 'two'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage(words: list[str], named: str, tmp_path: Path) -> None:
    done = multi_dnn(*words, folder=tmp_path)
    *usage, error = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert usage[0].startswith("usage: multi-dnn")
    assert re.match(r"multi-dnn( \w+)?: error: ", error)
    assert named in error
    assert not list(tmp_path.iterdir())


def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    """One line with the name, exit code 1 (2 where the option itself is checked), nothing written."""
    commands = {
        "no.mcap": ["replay", "no.mcap", "out"],
        "no_b.yaml": ["build", "no_b.yaml"],
        "no_c.yaml": ["run", "--params-file", "no_c.yaml"],
        "no_source": ["camera", "no_source"],
        "builtin:none": ["profile", "layers", "builtin:none", "--device", "cpu"],
        "no.mp4": ["demo", "--video", "no.mp4", "--output", "out"],
    }
    for name, done in run_commands(commands, tmp_path).items():
        assert done.returncode in (1, 2), f"{name}: {done.returncode}, {done.stderr}"
        error = done.stderr.strip().splitlines()[-1]
        assert error.startswith(f"multi-dnn {commands[name][0]}: error: "), done.stderr
        assert name in error
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert_one_error(multi_dnn("replay", "no.mcap", "out", folder=tmp_path), "no.mcap")
    done = multi_dnn("--debug", "replay", "no.mcap", "out", folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
