"""The table of docs/models.md is the one of results/models.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/models/agreement"))
import table  # noqa: E402

CONTENT = json.loads(table.RESULTS.read_text(encoding="utf-8"))


def test_the_table_of_models_is_the_measured_one() -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert table.table(CONTENT) in page, "paste the output of python test/models/agreement/table.py"


def test_at_least_twenty_models_agree_with_their_references() -> None:
    rows = [row for row in CONTENT["rows"] if row["agreement"] >= table.MIN_AGREEMENT]
    assert len({row["name"] for row in rows}) == len(rows) >= 20
    for row in rows:
        assert row["reference_results"] > 0, row
