"""Generates the tables of docs/parameters.md from the schema.

``python -m multi_dnn_ros.settings.parameter_table`` writes the file; a test fails if it is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path

from multi_dnn_ros.settings.flat_parameters import ParameterField, parameter_fields

#: The document with the tables, and what is around them.
PAGE = Path(__file__).resolve().parents[2] / "docs" / "parameters.md"
_BEGIN, _END = "<!-- parameters -->", "<!-- /parameters -->"
#: The camera, the DNN and the output whose parameters the tables show; the heading of each table by the names' prefix.
_EXAMPLE = {"cameras": ["front"], "dnns": ["cars"], "dnn.cars.outputs": ["boxes"]}
_TABLES = {
    "": ("", "Node"),
    "camera.front.": ("camera.<camera>.", "Cameras"),
    "dnn.cars.": ("dnn.<dnn>.", "DNNs"),
    "dnn.cars.output.boxes.": ("dnn.<dnn>.output.<output>.", "Several results of a DNN"),
}
#: Descriptions of defaults that depend on the DNN's name or role.
_DEFAULTS = {"dnn.<dnn>.role": "the DNN's name, if that is a role with defaults", "dnn.<dnn>.model": "that of the role"}


def in_document(text: str) -> str:
    """`text` with new tables between the markers. Raises ValueError if a marker is missing."""
    return replace_between_markers(text, _BEGIN, _END, f"\n{markdown()}\n")


def markdown() -> str:
    """A table for each section of the schema, in GitHub Markdown."""
    tables = []
    for prefix, (shown_prefix, title) in _TABLES.items():
        heading = f"## {title}: `{shown_prefix}`" if prefix else f"## {title}"
        rows = [heading, "", "| Parameter | Type | Default | Allowed | Meaning |", "|---|---|---|---|---|"]
        rows += [
            _row(shown_prefix + name.removeprefix(prefix), field)
            for name, field in parameter_fields(_EXAMPLE).items()
            if name.rpartition(".")[0] == prefix.rstrip(".")
        ]
        tables.append("\n".join(rows))
    return "\n\n".join(tables)


def _row(name: str, field: ParameterField) -> str:
    style = {"runtime": "**", "swap": "*"}.get(field.change, "")
    value = _DEFAULTS.get(name) or f"`{json.dumps(field.default)}`"
    allowed = field.allowed.replace("<", "&lt;")  # otherwise GitHub interprets it as HTML
    cells = (f"{style}`{name}`{style}", field.kind, value, allowed, field.description.strip().replace("\n", " "))
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


if __name__ == "__main__":
    PAGE.write_text(in_document(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
