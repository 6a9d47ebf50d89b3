"""Every command that the documents and `--help` show is accepted: verbs, options, make targets, launch arguments."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys

import pytest
from pages import BLOCKS, PAGES, ROOT, inline_code

from multi_dnn_ros.cli.main import VERBS, build_parser, split_ros_args

#: Code blocks, whether or not they are run, and code inside the text.
CODE = [
    line.strip()
    for block in BLOCKS
    if block.language in ("bash", "text")
    for line in block.text.replace("\\\n", " ").splitlines()
] + [code for text in PAGES.values() for code in inline_code(text)]


def commands(first: str) -> list[str]:
    """Every command of the documents that begins with this word, without its comment."""
    return sorted({re.split(r"\s+#| && ", line)[0].strip() for line in CODE if line.startswith(f"{first} ")})


def helps() -> list[str]:
    """Examples that `--help` gives."""
    texts = [build_parser().format_help()]
    for verb in VERBS:
        done = subprocess.run(
            [sys.executable, "-m", "multi_dnn_ros.cli.main", verb, "--help"], capture_output=True, text=True, check=True
        )
        texts.append(done.stdout)
    lines = [line.strip() for text in texts for line in text.splitlines() if line.startswith("  multi-dnn ")]
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


def test_every_verb_is_in_the_readme() -> None:
    first = re.findall(r"^\| (`[^|]*) \|", PAGES["README.md"], re.M)
    assert [verb for verb in VERBS if not any(re.search(rf"`{verb}[` ]", cell) for cell in first)] == []


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = [line.split()[1] for line in commands("make")]
    assert named
    assert set(named) <= set(targets)


def test_modules_to_run_answer_help() -> None:
    modules = {match for line in CODE for match in re.findall(r"python3? -m (multi_dnn_ros[\w.]*)", line)}
    assert modules
    for module in modules - {"multi_dnn_ros.settings.parameter_table"}:
        done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout


def test_launch_arguments_exist() -> None:
    for line in commands("ros2 launch multi_dnn_ros") + commands("ros2"):
        if match := re.match(r"ros2 launch multi_dnn_ros (\S+)(.*)", line):
            source = (ROOT / "launch" / match[1]).read_text(encoding="utf-8")
            for argument in re.findall(r"(\w+):=", match[2]):
                assert f'"{argument}"' in source, f"{line}: {match[1]} has no argument {argument}"
