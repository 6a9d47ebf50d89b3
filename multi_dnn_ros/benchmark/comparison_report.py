"""A comparison as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from multi_dnn_ros.benchmark.comparison import SAME, Comparison, Row
from multi_dnn_ros.benchmark.html_page import Page
from multi_dnn_ros.benchmark.quantities import cell
from multi_dnn_ros.common.reporting import table

_HEADER = ("figure", "first", "second", "ratio", "second is")


def comparison_table(comparison: Comparison) -> str:
    """Text for the terminal."""
    rows = [[row.case, *_cells(row)] for row in comparison.rows]
    lines = [f"first: {comparison.first.path}", f"second: {comparison.second.path}"]
    if rows:
        lines.append(table(["case", *_HEADER], rows))
        lines.append(f"ratio: second / first; a difference under {SAME:.0%} is called the same")
    else:
        lines.append("nothing can be compared")
    return "\n".join([*lines, *(f"not compared: {line}" for line in comparison.not_comparable)])


def comparison_page(comparison: Comparison) -> str:
    """The comparison as an HTML page."""
    first, second = comparison.first, comparison.second
    page = Page(f"{first.path.stem} and {second.path.stem}")
    page.paragraph(
        f"Files of multi-dnn benchmark {first.scenario}: {first.path.name} (first) and {second.path.name} (second)."
    )
    for case in dict.fromkeys(row.case for row in comparison.rows):
        page.heading(case)
        page.table(_HEADER, [_cells(row) for row in comparison.rows if row.case == case])
    if comparison.rows:
        notes = (
            f"Ratio: second / first. A difference under {SAME:.0%} is called the same; a figure without a verdict is "
            "neither good nor bad by itself."
        )
        if first.scenario == "board":
            notes += " Latency, CPU and power of a file are those at its own highest rate."
        page.paragraph(notes, "note")
    else:
        page.paragraph("Nothing can be compared.")
    if comparison.not_comparable:
        page.heading("Not compared")
        page.bullets(comparison.not_comparable)
    page.heading("Measured on")
    origins = dict(first.origin), dict(second.origin)
    names = dict.fromkeys((*origins[0], *origins[1]))
    rows = [[name, *(origin.get(name, "-") for origin in origins)] for name in names]
    page.table(["", "first", "second"], rows, text=True)
    return page.text()


def _cells(row: Row) -> Sequence[str]:
    return [row.quantity.heading, cell(row.first), cell(row.second), f"{row.ratio:.2f}", row.verdict or "-"]
