"""The table of docs/models.md from results/models.json, which measure.py writes.

python test/models/agreement/table.py        print it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[3] / "results" / "models.json"
HEADER = (
    "model",
    "weights",
    "licence",
    "opset",
    "decoder",
    "command: `multi-dnn demo --video FILE` and",
    "measured agreement",
)
_MEASURES = {
    "mAP at IoU 0.9": "mAP {:.3f}",
    "lines within 1 px": "lines {:.3f}",
    "IoU of line pixels": "pixels {:.4f}",
}


#: Minimum agreement of a row of the table.
MIN_AGREEMENT = 0.99


def table(content: dict[str, Any]) -> str:
    """Markdown, a row for each model that agrees with its reference."""
    rows = [_row(row) for row in content["rows"] if row["agreement"] >= MIN_AGREEMENT]
    lines = [HEADER, ("---",) * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def others(content: dict[str, Any]) -> str:
    """The models that are not in the table, with the agreement, and those without a figure."""
    below = [f"{row['name']} {row['agreement']:.3f}" for row in content["rows"] if row["agreement"] < MIN_AGREEMENT]
    failed = [row["name"] for row in content["failed"]]
    parts = [f"{', '.join(below)} (below {MIN_AGREEMENT})"] if below else []
    parts += [f"{', '.join(failed)} (no figure)"] if failed else []
    return f"Not in the table: {'; '.join(parts)}." if parts else ""


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    weights = row["source"] if row["weights"] == "trained" else f"random; {row['source']}"
    agreement = _MEASURES[row["measure"]].format(row["agreement"])
    command = f"`--model {row['role']}={row['file']}`"
    if "keep" in row["parameters"]:
        command = "a parameter file with `labels` and `keep`"
    return (row["name"], weights, row["licence"], str(row["opset"]), f"`{row['decoder']}`", command, agreement)


if __name__ == "__main__":
    measured = json.loads(RESULTS.read_text())
    print(f"{table(measured)}\n{others(measured)}")
