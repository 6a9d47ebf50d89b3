"""Tables of all extensions for the documentation: ``python tools/extension_tables.py``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.models.registry import MODEL_SOURCES
from multi_dnn_ros.settings.parameter_table import replace_between_markers
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

BEGIN, END = "<!-- registries -->", "<!-- /registries -->"
_PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


def markdown() -> str:
    """A GitHub Markdown table for each registry, with the usable entries of other installed packages."""
    decoders = [(spec.name, spec.signature, f"`{spec.result_kind}`") for spec in DECODERS.usable()]
    kinds = [
        (
            kind.name,
            ", ".join(f"`{name}` ({msgtype})" for name, msgtype in (kind.msgtypes | kind.ground_msgtypes).items()),
            kind.truth or "no",
        )
        for kind in RESULT_KINDS.usable()
    ]
    backends = [
        (
            spec.name,
            "; ".join(f"{device}: {', '.join(names)}" for device, names in spec.precisions.items()),
            ", ".join(spec.captures) or "no",
            "yes" if spec.compiles else "no",
        )
        for spec in BACKENDS.usable()
    ]
    # GitHub would treat <name> as HTML.
    sources = [
        (source.name, source.form.replace("<", "&lt;"), "yes" if source.rebuilds else "no")
        for source in MODEL_SOURCES.usable()
    ]
    return "\n\n".join(
        [
            _table(("Decoder", "Outputs that it reads", "Result kind"), decoders),
            _table(("Result kind", "Topics below `~/<camera>/<dnn>/`", "Scored with"), kinds),
            _table(("Backend", "Devices and precisions", "Captured as CUDA graphs", "Compiles for minutes"), backends),
            _table(("Model source", "Written as", "Rebuilt from its name"), sources),
        ]
    )


def in_document(text: str) -> str:
    """`text` with new tables between the markers. Raises ValueError if a marker is missing."""
    return replace_between_markers(text, BEGIN, END, markdown())


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the tables, or write them into docs/extending.md of the checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/extending.md of the checkout")
    if parser.parse_args().write:
        _PAGE.write_text(in_document(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(markdown())


if __name__ == "__main__":
    main()
