"""Every command that the documents and `--help` show is accepted: verbs, options, make targets, launch arguments."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable

import pytest
from pages import BLOCKS, PAGES, ROOT, inline_code

from multi_dnn_ros.cli.main import VERBS, build_parser, main, split_ros_args

#: Code blocks, whether or not they are run, and code inside the text.
CODE = [
    line.strip()
    for block in BLOCKS
    if block.language in ("bash", "text")
    for line in block.text.replace("\\\n", " ").splitlines()
]
INLINE = {code for text in PAGES.values() for code in inline_code(text)}


def commands(first: str) -> list[str]:
    """Every command of the documents that begins with this word, without its comment."""
    return sorted(
        {re.split(r"\s+#| && ", line)[0].strip() for line in (*CODE, *INLINE) if line.startswith(f"{first} ")}
    )


def printed(call: Callable[[], object]) -> str:
    """What a call prints before it ends, or ends the program."""
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        call()
    return output.getvalue()


def helps() -> list[str]:
    """Examples that `--help` gives."""
    texts = [printed(lambda arguments=arguments: main(arguments)) for arguments in (["--help"], *HELP_OF_VERBS)]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.startswith("  multi-dnn ")]
    return sorted({re.split(r"\s{2,}", line)[0] for line in lines})


HELP_OF_VERBS = [[verb, "--help"] for verb in VERBS]
#: Stand for a word that the reader puts in.
PLACEHOLDERS = {"COMMAND", "VERB", "ACTION", "SCENARIO"}


@pytest.mark.parametrize("line", [*commands("multi-dnn"), *helps()])
def test_command_lines_are_accepted(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, _ = split_ros_args([word for word in shlex.split(line)[1:] if word not in ("...", "\\")])
    if PLACEHOLDERS & set(words):
        return
    with contextlib.suppress(SystemExit):
        build_parser().parse_args(words)
        return
    refused = capsys.readouterr()
    # `--help` is answered; in the text `multi-dnn profile layers` alone names a verb or an option.
    named = "required:" in refused.err and line in INLINE
    assert "usage:" in refused.out or named, f"{line}: {refused.err}"


def test_every_verb_is_in_the_readme() -> None:
    first = re.findall(r"^\| (`[^|]*) \|", PAGES["README.md"], re.M)
    assert [verb for verb in VERBS if not any(re.search(rf"`{verb}[` ]", cell) for cell in first)] == []


def test_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = [word for line in commands("make") for word in line.split()[1:2] if "=" not in word]
    assert named
    assert set(named) <= set(targets)


def test_launch_arguments_exist() -> None:
    for line in commands("ros2 launch multi_dnn_ros") + commands("ros2"):
        if match := re.match(r"ros2 launch multi_dnn_ros (\S+)(.*)", line):
            source = (ROOT / "launch" / match[1]).read_text(encoding="utf-8")
            for argument in re.findall(r"(\w+):=", match[2]):
                assert f'"{argument}"' in source, f"{line}: {match[1]} has no argument {argument}"
