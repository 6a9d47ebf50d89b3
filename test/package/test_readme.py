"""What the README and the pages under docs/ tell people to type exists, and so does every file that they name."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import VERBS, build_parser, main, split_ros_args

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
TEXT = "\n".join(PAGES.values())
#: Code blocks, and code inside the text.
CODE = [
    line for block in re.findall(r"```\w*\n(.*?)```", TEXT, re.S) for line in block.replace("\\\n", " ").splitlines()
] + re.findall(r"`([^`\n]+)`", TEXT)


def commands(first: str) -> list[str]:
    """Every command on the pages that begins with this word, without its comment."""
    return sorted({line.split("  #")[0].split(" && ")[0].strip() for line in CODE if line.startswith(f"{first} ")})


def helps() -> list[str]:
    """Examples that `--help` gives."""
    texts = [build_parser().format_help()]
    for verb in VERBS:
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([verb, "--help"])
        texts.append(text.getvalue())
    lines = [line.strip() for text in texts for line in text.splitlines() if line.startswith("  multi-dnn ")]
    assert lines
    return sorted({re.split(r"\s{2,}", line)[0] for line in lines})


@pytest.mark.parametrize("line", [*commands("multi-dnn"), *helps()])
def test_command_lines_are_accepted(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, _ = split_ros_args([word for word in shlex.split(line)[1:] if word not in ("...", "\\")])
    if words[:1] in (["COMMAND"], ["VERB"]):
        return
    with contextlib.suppress(SystemExit):
        build_parser().parse_args(words)
        return
    refused = capsys.readouterr()
    # `multi-dnn benchmark` alone names a verb; `--help` is answered.
    assert "usage:" in refused.out or (len(words) == 1 and "required" in refused.err), f"{line}: {refused.err}"


def test_every_verb_is_explained() -> None:
    assert [verb for verb in VERBS if not re.search(rf"^\| `{verb}[` ]", README, re.M)] == []


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = [line.split()[1] for line in commands("make")]
    assert named
    assert set(named) <= set(targets)


def test_modules_to_run_answer_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    modules = {match for line in CODE for match in re.findall(r"python3? -m (multi_dnn_ros[\w.]*)", line)}
    assert modules
    for module in modules - {"multi_dnn_ros.settings.parameter_table"}:
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert not ended.value.code
        assert "usage:" in capsys.readouterr().out


def test_launch_arguments_exist() -> None:
    for line in commands("ros2 launch multi_dnn_ros") + commands("ros2"):
        if match := re.match(r"ros2 launch multi_dnn_ros (\S+)(.*)", line):
            source = (ROOT / "launch" / match[1]).read_text(encoding="utf-8")
            for argument in re.findall(r"(\w+):=", match[2]):
                assert f'"{argument}"' in source, f"{line}: {match[1]} has no argument {argument}"


def test_files_that_are_named_are_there() -> None:
    named = {ROOT / name for name in re.findall(r"`((?:results|config|launch|docs)/[\w./]+)`", TEXT)}
    for path, text in PAGES.items():
        named |= {path.parent / name for name in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)}
    assert named
    assert [str(path) for path in named if not path.exists()] == []
