"""Writes what the schema knows for people to read: the README's parameter table and ``config/multi_dnn.yaml``.

``python -m multi_dnn_ros.settings.parameter_table`` brings both files of the checkout up to date; a test fails if they
are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.settings.flat_parameters import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    ParameterField,
    fields_of,
    list_field,
    parameter_fields,
)
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

BEGIN, END = "<!-- parameters -->", "<!-- /parameters -->"
_ROOT = Path(__file__).resolve().parents[2]


def markdown() -> str:
    """The table of all parameters, GitHub Markdown."""
    rows = [
        "| Parameter | Type | Default | Allowed | Meaning |",
        "|---|---|---|---|---|",
        _row("cameras", list_field("cameras", DEFAULT_CAMERAS)),
        _row("dnns", list_field("dnns", DEFAULT_DNNS)),
    ]
    rows += [_row(name, field) for name, field in fields_of(NodeConfig).items()]
    rows += [_row(f"camera.<camera>.{name}", field) for name, field in fields_of(CameraConfig).items()]
    shown_defaults = {
        "role": "the DNN's name, if that is a role with defaults",
        "model": "that of the role",
    }
    rows += [_row(f"dnn.<dnn>.{name}", field, shown_defaults.get(name)) for name, field in fields_of(DnnConfig).items()]
    rows.append("")
    rows.append(
        "**Bold**: may change at any time (`ros2 param set`). The others change only while the node is unconfigured "
        "(`ros2 lifecycle set /multi_dnn cleanup` first)."
    )
    return "\n".join(rows)


def in_document(text: str) -> str:
    """`text` with the table between the markers renewed; ValueError where a marker is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document needs the markers {BEGIN} and {END}, in this order")
    return f"{head}{BEGIN}\n{markdown()}\n{END}{tail}"


def default_yaml() -> str:
    """``config/multi_dnn.yaml``: every parameter at its default, with its meaning and limits as a comment."""
    lines = [
        "# All parameters of the node at their defaults. Made from multi_dnn_ros/settings/schema.py by",
        "# `python -m multi_dnn_ros.settings.parameter_table`; copy it and change the copy.",
        "# [runtime]: may change at any time (`ros2 param set`); the others only while the node is unconfigured.",
        "# An empty list is written as a comment: ROS 2's parameter files cannot hold one.",
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
            lines += [f"      {name}:", *_yaml_lines("        ", section, explained)]
    return "\n".join(lines) + "\n"


def _yaml_lines(indent: str, fields: Mapping[str, ParameterField], explained: set[str]) -> Iterator[str]:
    """Each meaning is written once: at the first of several DNNs."""
    for name, field in fields.items():
        if name not in explained:
            explained.add(name)
            runtime = " [runtime]" if field.runtime else ""
            yield f"{indent}# {field.description} ({field.allowed}){runtime}"
        yield f"{indent}{'# ' if field.default == [] else ''}{name}: {_yaml_value(field.default)}"


def _row(name: str, field: ParameterField, default: str | None = None) -> str:
    title = f"**`{name}`**" if field.runtime else f"`{name}`"
    value = default or f"`{_yaml_value(field.default)}`"
    cells = (title, field.kind, value, field.allowed, field.description)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _yaml_value(value: Any) -> str:
    """As YAML, which JSON is; a float keeps its point, because ROS takes a number without one for an integer."""
    if isinstance(value, list):
        return "[" + ", ".join(_yaml_value(item) for item in value) + "]"
    return json.dumps(value)


def main() -> None:
    """Renew config/multi_dnn.yaml and the README's table."""
    (_ROOT / "config" / "multi_dnn.yaml").write_text(default_yaml(), encoding="utf-8")
    readme = _ROOT / "README.md"
    if readme.is_file():
        readme.write_text(in_document(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
