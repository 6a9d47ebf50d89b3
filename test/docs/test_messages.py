"""The messages that docs/troubleshooting.md quotes are those of the code, and the parameters of all pages exist."""

from __future__ import annotations

import ast
import os
import re
from errno import ENOENT
from functools import cache

import pytest
from pages import PAGES, ROOT, inline_code
from source_trees import source_trees

from multi_dnn_ros.settings.flat_parameters import fields_of
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

#: Messages of others: of the operating system, of PyTorch.
_FOREIGN = (os.strerror(ENOENT), "operator torchvision::nms does not exist")
#: What one message inserts into another is two messages here.
_SPLIT = r"<[^>]*>|'[^']*'|; |: |, |\d+ (?:s|GPUs)\b|(?= while computing)"
_COMMANDS = ("ros2 ", "multi-dnn ", "make ", "python3 ", "sudo ", "pip ")
#: Fewer words between two values are found anywhere.
_LEAST_WORDS = 3


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


def test_quoted_messages_are_those_of_the_code() -> None:
    messages = [
        code
        for code in dict.fromkeys(inline_code(PAGES["docs/troubleshooting.md"]))
        if len(code.split()) >= _LEAST_WORDS
        and not code.startswith(_COMMANDS)
        and not re.fullmatch(r"[\w.<>]+: \S+", code)
    ]
    assert len(messages) > 25
    parts = [part.strip() for text in messages if text not in _FOREIGN for part in re.split(_SPLIT, text)]
    assert [part for part in parts if len(part.split()) >= _LEAST_WORDS and part not in sources()] == []


@pytest.mark.parametrize("page", PAGES)
def test_parameters_in_the_text_exist(page: str) -> None:
    """`dnn.<dnn>.jobs`, `camera.front.topic: /x`, `standby: none`: the name is one, and the value is allowed."""
    sections = {"camera": fields_of(CameraConfig), "dnn": fields_of(DnnConfig)}
    fields = {**fields_of(NodeConfig), **sections["camera"], **sections["dnn"]}
    for code in inline_code(PAGES[page]):
        full = re.fullmatch(r"(camera|dnn)\.(?:<\w+>|[a-z]\w*)\.(\w+)(?:: .*)?", code)
        if full is not None:
            assert full[2] in sections[full[1]], f"{page}: {code}"
        setting = re.fullmatch(r"(?:(?:camera|dnn)\.(?:<\w+>|\w+)\.)?(\w+): ([\w.]+)", code)
        if setting is not None and setting[1] in fields:
            field = fields[setting[1]]
            values = {"true": True, "false": False}
            number = {"int": int, "float": float}.get(field.kind, str)
            field.checked(setting[1], values.get(setting[2], number(setting[2])))
