"""The messages that docs/troubleshooting.md quotes are those of the code, and its parameters and reasons exist."""

from __future__ import annotations

import ast
import os
import re
from errno import ENOENT
from functools import cache

import pytest
from pages import PAGES, ROOT, inline_code
from source_trees import source_trees

from multi_dnn_ros.engine.statistics import TIMINGS
from multi_dnn_ros.settings.parameter_fields import fields_of
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

PAGE = PAGES["docs/troubleshooting.md"]
#: Messages of others: of the operating system, of PyTorch.
_FOREIGN = (os.strerror(ENOENT), "operator torchvision::nms does not exist")
#: What one message inserts into another is two messages here.
_SPLIT = r"<[^>]*>|'[^']*'|; |: |, |\d+ (?:s|GPUs)\b|(?= while computing)"
_COMMANDS = ("ros2 ", "multi-dnn ", "make ", "python3 ", "sudo ", "pip ")
#: Fewer words between two values are found anywhere.
_LEAST_WORDS = 3
FIELDS = {**fields_of(NodeConfig), **fields_of(CameraConfig), **fields_of(DnnConfig)}


@cache
def sources() -> str:
    """All text of the package's string literals, a line for each part between two values, and of the tools."""
    parts = [*_FOREIGN]
    for tree in source_trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts += re.split(r"%[sdrg]|%\.\d+f", node.value)
    parts += [re.sub(r'" \\\n\s*"', " ", path.read_text(encoding="utf-8")) for path in (ROOT / "tools").glob("*.sh")]
    return "\n".join(parts)


def messages() -> list[str]:
    settings = re.compile(r"[\w.<>]+: \S+")
    return [
        code
        for code in dict.fromkeys(inline_code(PAGE))
        if len(code.split()) >= _LEAST_WORDS and not code.startswith(_COMMANDS) and not settings.fullmatch(code)
    ]


@pytest.mark.parametrize("message", messages())
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    if message in _FOREIGN:
        return
    parts = [part.strip() for part in re.split(_SPLIT, message)]
    for part in (part for part in parts if len(part.split()) >= _LEAST_WORDS):
        assert part in sources(), f"docs/troubleshooting.md quotes '{part}', which no message of the package holds"


def test_messages_are_found_at_all() -> None:
    assert len(messages()) > 25
    assert "this text is nowhere to be found" + " in a message" not in sources()


def test_every_step_of_the_latency_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert set(TIMINGS) <= set(rows)


@pytest.mark.parametrize("page", PAGES)
def test_parameters_in_the_text_exist(page: str) -> None:
    """`dnn.<dnn>.jobs`, `camera.front.topic: /x`, `standby: none`: the name is one, and the value is allowed."""
    sections = {"camera": fields_of(CameraConfig), "dnn": fields_of(DnnConfig)}
    for code in inline_code(PAGES[page]):
        full = re.fullmatch(r"(camera|dnn)\.(?:<\w+>|[a-z]\w*)\.(\w+)(?:: .*)?", code)
        if full is not None:
            assert full[2] in sections[full[1]], f"{page}: {code}"
        setting = re.fullmatch(r"(?:(?:camera|dnn)\.(?:<\w+>|\w+)\.)?(\w+): ([\w.]+)", code)
        if setting is not None and setting[1] in FIELDS:
            field = FIELDS[setting[1]]
            values = {"true": True, "false": False}
            number = {"int": int, "float": float}.get(field.kind, str)
            field.checked(setting[1], values.get(setting[2], number(setting[2])))
