"""Generates docs/parameters.md and ``config/multi_dnn.yaml`` from the schema.

``python -m multi_dnn_ros.settings.parameter_table`` writes both files; a test fails if they are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.settings.parameter_fields import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    ParameterField,
    fields_of,
    list_field,
    parameter_fields,
)
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig, OutputConfig
from multi_dnn_ros.settings.swappable import is_swappable

BEGIN, END = "<!-- parameters -->", "<!-- /parameters -->"
_ROOT = Path(__file__).resolve().parents[2]
#: The document with the tables.
PAGE = _ROOT / "docs" / "parameters.md"
#: Descriptions of defaults that depend on the DNN's name or role.
_SHOWN_DEFAULTS = {"role": "the DNN's name, if that is a role with defaults", "model": "that of the role"}


def markdown() -> str:
    """A table for each section of the schema, in GitHub Markdown."""
    node = {"cameras": list_field("cameras", DEFAULT_CAMERAS), "dnns": list_field("dnns", DEFAULT_DNNS)}
    return "\n\n".join(
        [
            _table("Node", "", {**node, **fields_of(NodeConfig)}),
            _table("Cameras: `camera.<camera>.`", "camera.<camera>.", fields_of(CameraConfig)),
            _table("DNNs: `dnn.<dnn>.`", "dnn.<dnn>.", fields_of(DnnConfig), _SHOWN_DEFAULTS),
            _table(
                "Several results of a DNN: `dnn.<dnn>.output.<output>.`",
                "dnn.<dnn>.output.<output>.",
                fields_of(OutputConfig),
            ),
        ]
    )


def in_document(text: str) -> str:
    """`text` with new tables between the markers. Raises ValueError if a marker is missing."""
    return replace_between_markers(text, BEGIN, END, f"\n{markdown()}\n")


def replace_between_markers(document: str, begin: str, end: str, text: str) -> str:
    """Return `document` with the text between the two markers replaced by `text`.

    Raises ValueError if a marker is missing.
    """
    head, found_begin, rest = document.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document needs the markers {begin} and {end}, in this order")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def default_yaml() -> str:
    """``config/multi_dnn.yaml``: every parameter with its default, described in a comment."""
    lines = [
        "# All parameters of the node with their defaults. Generated from multi_dnn_ros/settings/schema.py by",
        "# `python -m multi_dnn_ros.settings.parameter_table`: edit a copy of this file, not this file.",
        "# [runtime]: can be changed at any time (`ros2 param set`). [swap]: a change while the node is configured",
        "# replaces the engine process (docs/isolation.md). All others: only while the node is unconfigured.",
        "# Empty lists are commented out, because ROS 2 parameter files cannot contain them.",
        "/**:",
        "  ros__parameters:",
    ]
    fields = parameter_fields(DEFAULT_CAMERAS, DEFAULT_DNNS)
    lines += _yaml_lines("    ", {name: field for name, field in fields.items() if "." not in name}, set())
    for kind, names in (("camera", DEFAULT_CAMERAS), ("dnn", DEFAULT_DNNS)):
        lines += ["", f"    {kind}:"]
        explained: set[str] = set()
        for name in names:
            prefix = f"{kind}.{name}."
            section = {full.removeprefix(prefix): field for full, field in fields.items() if full.startswith(prefix)}
            lines += [f"      {name}:", *_yaml_lines("        ", section, explained, in_dnn=kind == "dnn")]
    return "\n".join(lines) + "\n"


def _is_swappable(name: str) -> bool:
    """As is_swappable, for a name with placeholders."""
    return is_swappable(name.replace("<dnn>", "x").replace("<output>", "x"))


def _yaml_lines(
    indent: str, fields: Mapping[str, ParameterField], explained: set[str], *, in_dnn: bool = False
) -> Iterator[str]:
    """Only the first of several cameras or DNNs gets descriptions. in_dnn: the fields are those of a DNN."""
    for name, field in fields.items():
        if name not in explained:
            explained.add(name)
            note = " [runtime]" if field.runtime else " [swap]" if in_dnn and _is_swappable(f"dnn.x.{name}") else ""
            yield f"{indent}# {field.description} ({field.allowed}){note}"
        yield f"{indent}{'# ' if field.default == [] else ''}{name}: {_yaml_value(field.default)}"


def _table(title: str, prefix: str, fields: Mapping[str, ParameterField], defaults: Mapping[str, str] = {}) -> str:
    rows = [_row(f"{prefix}{name}", field, defaults.get(name)) for name, field in fields.items()]
    return "\n".join(
        [f"## {title}", "", "| Parameter | Type | Default | Allowed | Meaning |", "|---|---|---|---|---|", *rows]
    )


def _row(name: str, field: ParameterField, default: str | None = None) -> str:
    title = f"**`{name}`**" if field.runtime else f"*`{name}`*" if _is_swappable(name) else f"`{name}`"
    value = default or f"`{_yaml_value(field.default)}`"
    allowed = field.allowed.replace("<", "&lt;")  # otherwise GitHub interprets it as HTML
    cells = (title, field.kind, value, allowed, field.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _yaml_value(value: Any) -> str:
    """As JSON, a subset of YAML. A float keeps its decimal point: ROS reads a number without one as an integer."""
    if isinstance(value, list):
        return "[" + ", ".join(_yaml_value(item) for item in value) + "]"
    return json.dumps(value)


def main() -> None:
    """Write config/multi_dnn.yaml and the tables of docs/parameters.md."""
    (_ROOT / "config" / "multi_dnn.yaml").write_text(default_yaml(), encoding="utf-8")
    if PAGE.is_file():  # not in an installed package
        PAGE.write_text(in_document(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
