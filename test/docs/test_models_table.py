"""docs/models.md names the models of results/models.json that agree with their references."""

from __future__ import annotations

import json

from pages import PAGES, ROOT

ROWS = json.loads((ROOT / "results/models.json").read_text(encoding="utf-8"))["rows"]
_MIN_AGREEMENT = 0.99


def test_the_models_that_agree_are_named() -> None:
    agree = [row for row in ROWS if row["agreement"] >= _MIN_AGREEMENT]
    assert len(agree) >= 20
    assert all(row["reference_results"] > 0 for row in agree)
    page = " ".join(PAGES["docs/models.md"].split())
    assert [row["name"] for row in agree if row["name"] not in page] == []
