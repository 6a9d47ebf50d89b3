"""Generates docs/parameters.md and ``config/multi_dnn.yaml`` from the schema.

``python -m multi_dnn_ros.settings.parameter_table`` writes both files; a test fails if they are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.settings.parameter_fields import ParameterField, is_swappable, parameter_fields

BEGIN, END = "<!-- parameters -->", "<!-- /parameters -->"
_ROOT = Path(__file__).resolve().parents[2]
#: The document with the tables.
PAGE = _ROOT / "docs" / "parameters.md"
#: Heading of each table, and the prefix of its parameters.
_TABLES = {
    "Node": "",
    "Cameras: `camera.<camera>.`": "camera.<camera>.",
    "DNNs: `dnn.<dnn>.`": "dnn.<dnn>.",
    "Several results of a DNN: `dnn.<dnn>.output.<output>.`": "dnn.<dnn>.output.<output>.",
}
#: Descriptions of defaults that depend on the DNN's name or role.
_DEFAULTS = {"dnn.<dnn>.role": "the DNN's name, if that is a role with defaults", "dnn.<dnn>.model": "that of the role"}
_HEAD = """\
# All parameters of the node with their defaults. Generated from multi_dnn_ros/settings/schema.py by
# `python -m multi_dnn_ros.settings.parameter_table`: edit a copy of this file, not this file. The other DNNs have the
# same parameters as the first.
# [runtime]: can be changed at any time (`ros2 param set`). [swap]: a change while the node is configured
# replaces the engine process (docs/isolation.md). All others: only while the node is unconfigured.
# Empty lists are commented out, because ROS 2 parameter files cannot contain them.
/**:
  ros__parameters:
"""


def markdown() -> str:
    """A table for each section of the schema, in GitHub Markdown."""
    fields = parameter_fields(["<camera>"], ["<dnn>"], {"<dnn>": ["<output>"]})
    tables = []
    for title, prefix in _TABLES.items():
        named = {name: field for name, field in fields.items() if name.rpartition(".")[0] == prefix.rstrip(".")}
        head = [f"## {title}", "", "| Parameter | Type | Default | Allowed | Meaning |", "|---|---|---|---|---|"]
        tables.append("\n".join([*head, *(_row(name, field) for name, field in named.items())]))
    return "\n\n".join(tables)


def _row(name: str, field: ParameterField) -> str:
    title = f"**`{name}`**" if field.runtime else f"*`{name}`*" if is_swappable(name) else f"`{name}`"
    value = _DEFAULTS.get(name) or f"`{_yaml_value(field.default)}`"
    allowed = field.allowed.replace("<", "&lt;")  # otherwise GitHub interprets it as HTML
    cells = (title, field.kind, value, allowed, field.description.strip().replace("\n", " "))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def replace_between_markers(document: str, begin: str, end: str, text: str) -> str:
    """Return `document` with the text between the two markers replaced by `text`.

    Raises ValueError if a marker is missing.
    """
    head, found_begin, rest = document.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document needs the markers {begin} and {end}, in this order")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def in_document(text: str) -> str:
    """`text` with new tables between the markers. Raises ValueError if a marker is missing."""
    return replace_between_markers(text, BEGIN, END, f"\n{markdown()}\n")


def default_yaml() -> str:
    """``config/multi_dnn.yaml``: every parameter with its default, described in a comment."""
    fields = parameter_fields(["front"], ["lane"])
    lines = list(_yaml_lines("    ", "", fields))
    for kind, name in (("camera", "front"), ("dnn", "lane")):
        lines += ["", f"    {kind}:", f"      {name}:", *_yaml_lines("        ", f"{kind}.{name}.", fields)]
    return _HEAD + "\n".join(lines) + "\n"


def _yaml_lines(indent: str, prefix: str, fields: Mapping[str, ParameterField]) -> Iterator[str]:
    for name, field in fields.items():
        if name.rpartition(".")[0] == prefix.rstrip("."):
            note = " [runtime]" if field.runtime else " [swap]" if is_swappable(name) else ""
            yield f"{indent}# {field.description.strip()} ({field.allowed}){note}".replace("\n", f"\n{indent}# ")
            yield f"{indent}{'# ' if field.default == [] else ''}{name[len(prefix) :]}: {_yaml_value(field.default)}"


def _yaml_value(value: Any) -> str:
    """As JSON, a subset of YAML. A float keeps its decimal point: ROS reads a number without one as an integer."""
    return json.dumps(value)


def main() -> None:
    """Write config/multi_dnn.yaml and the tables of docs/parameters.md."""
    (_ROOT / "config" / "multi_dnn.yaml").write_text(default_yaml(), encoding="utf-8")
    if PAGE.is_file():  # not in an installed package
        PAGE.write_text(in_document(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
