"""Figures of other pages than docs/measured.md: each is computed from the file that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pages import PAGES
from test_figure_values import content, is_rounded
from test_figures import figures


def section(page: str, title: str) -> str:
    """Text under a heading, with what is below deeper ones."""
    text = PAGES[page]
    match = re.search(rf"^(#+) {re.escape(title)}\n", text, re.M)
    assert match is not None, f"{page} has no section '{title}'"
    end = re.search(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], re.M)
    return text[match.end() :][: end.start() if end is not None else None]


# -- built-in networks on real roads


def operating_point(network: str, data: str, threshold: float, part: str = "networks") -> dict[str, Any]:
    points = content("builtin_real_roads.json")[part][network]["operating_points"][data]
    (point,) = [each for each in points if each["threshold"] == threshold]
    return dict(point)


def test_precision_and_recall_at_the_thresholds() -> None:
    rows = re.findall(r"^\| `builtin:(\w+)` \| (\w+) \|(.+) \|$", section("docs/models.md", "Score thresholds"), re.M)
    networks = content("builtin_real_roads.json")["networks"]
    assert {(network, data) for network, data, _ in rows} == {
        (network, data) for network, of in networks.items() for data in of["operating_points"]
    }
    for network, data, cells in rows:
        threshold, *written = (cell.strip() for cell in cells.split("|"))
        point = operating_point(network, data, float(threshold))
        for figure, name in zip(written, ("precision", "recall", "false_per_image"), strict=True):
            if figure == "-":
                assert point[name] is None, (network, data, name)
            else:
                assert is_rounded(figure, point[name]), (network, data, name)


_BEFORE = "before_retraining_with_real_roads"
#: Figure, as it is written in the text; network, data, threshold and part of the file; the score.
POINTS = [
    ("0.60", ("pedestrian", "streets", 0.5), "precision"),
    ("0.18", ("pedestrian", "highway", 0.5), "false_per_image"),
    ("2.5", ("pedestrian", "highway", 0.4, _BEFORE), "false_per_image"),
    ("0.35", ("pedestrian", "highway", 0.4), "false_per_image"),
    ("0.39", ("object", "highway", 0.4, _BEFORE), "precision"),
    ("0.45", ("object", "highway", 0.4, _BEFORE), "recall"),
    ("0.80", ("object", "highway", 0.4), "precision"),
    ("0.62", ("object", "highway", 0.4), "recall"),
]


@pytest.mark.parametrize(("figure", "point", "score"), POINTS, ids=[f"{of[0]} {of[2]}" for of in POINTS])
def test_precision_and_recall_in_the_text(figure: str, point: tuple, score: str) -> None:
    assert figure in figures(section("docs/models.md", "Score thresholds"))
    assert is_rounded(figure, operating_point(*point)[score])


# -- figures in the text of other pages


def _gaps(result: Any, fault: str) -> list[float]:
    """Seconds without a result of the DNNs that are not at fault."""
    return [gap for run in result["hot"] for dnn, gap in run["longest_gap_s"][fault].items() if dnn != "object"]


def _macs_gone(result: Any, dnn: str) -> float:
    return float(100 * (1 - result["decomposed"][dnn]["macs"] / result["original"][dnn]["macs"]))


_STANDBY = "How fast: parameter `standby`"
#: Page, heading, figure as it is written, file, and how the figure is computed from it.
COMPUTED: list[tuple[str, str, str, str, Callable[[Any], float]]] = [
    ("isolation", _STANDBY, "0.07", "gpu_faults", lambda it: min(_gaps(it, "1: assert"))),
    ("isolation", _STANDBY, "0.12", "gpu_faults", lambda it: max(_gaps(it, "1: assert"))),
    ("isolation", _STANDBY, "0.40", "gpu_faults", lambda it: min(_gaps(it, "2: illegal address"))),
    ("isolation", _STANDBY, "0.41", "gpu_faults", lambda it: max(_gaps({"hot": it["hot"][-1:]}, "2: illegal address"))),
    ("isolation", _STANDBY, "0.57", "gpu_faults", lambda it: max(_gaps(it, "2: illegal address"))),
    ("isolation", _STANDBY, "4", "gpu_faults", lambda it: it["warm"][-1]["longest_gap_s"]["lane"]),
    ("isolation", _STANDBY, "7", "gpu_faults", lambda it: it["warm"][1]["longest_gap_s"]["lane"]),
    *(
        ("training", "In three commands", "45", "demo_comparison", lambda it, dnn=dnn: _macs_gone(it, dnn))
        for dnn in ("lane", "object", "pedestrian")
    ),
]


@pytest.mark.parametrize(
    ("page", "heading", "figure", "name", "compute"), COMPUTED, ids=[f"{it[0]} {it[2]}" for it in COMPUTED]
)
def test_computed_figures(page: str, heading: str, figure: str, name: str, compute: Callable[[Any], float]) -> None:
    assert figure in figures(section(f"docs/{page}.md", heading))
    assert is_rounded(figure, compute(content(f"{name}.json")))
