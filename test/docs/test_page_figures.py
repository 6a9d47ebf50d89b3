"""Figures of other pages than docs/measured.md: each is computed from the file that it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pages import PAGES, ROOT
from test_figure_values import content, is_in, is_rounded, long_figures, values_of
from test_figures import figures

from multi_dnn_ros.benchmark.soak.report import verdict_table

#: Figures of docs/host-cost.md that are settings or rounded.
_NO_RESULTS = {"1280", "1920", "1080", "2000"}


def section(page: str, title: str) -> str:
    """Text under a heading, with what is below deeper ones."""
    text = PAGES[page]
    match = re.search(rf"^(#+) {re.escape(title)}\n", text, re.M)
    assert match is not None, f"{page} has no section '{title}'"
    end = re.search(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], re.M)
    return text[match.end() :][: end.start() if end is not None else None]


def test_the_cost_of_the_host() -> None:
    names = sorted(path.name for path in (ROOT / "results").glob("host_*.json"))
    values = {value for name in names for value in values_of(content(name))}
    written = long_figures(PAGES["docs/host-cost.md"])
    assert len(written) > 20
    assert {figure for figure in written - _NO_RESULTS if not is_in(figure, values)} == set()


#: Rows of the table of costs: file, and preset of the case. The table of groups has columns for all but the last.
_COSTS = [
    ("host_builtin_gpu_raw_after", "builtin"),
    ("host_builtin_gpu_jpeg_after", "builtin"),
    ("host_heavy_gpu_h200_raw", "heavy_gpu"),
    ("host_heavy_gpu_h200_jpeg", "heavy_gpu"),
    ("host_null_gpu", "null"),
]
#: Rows of the table of groups of threads: pattern of the process, and names of the groups.
_GROUPS = [
    ("engine", {"engine"}),
    ("node", {"receive"}),
    ("node", {"middleware"}),
    ("node", {"decode"}),
    ("node", {"publish"}),
    ("engine", {"exchange", "report"}),
    ("node|engine", {"other"}),
]


def host_case(name: str, preset: str) -> dict[str, Any]:
    (case,) = (of for case, of in content(f"{name}.json")["cases"].items() if case.startswith(f"{preset} "))
    return dict(case)


def table_rows(page: str, title: str) -> list[list[str]]:
    """Cells of the rows of the first table of a section, without its header."""
    table = re.search(r"(?:^\|.*\n)+", section(page, title), re.M)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_what_a_frame_costs_is_in_the_files() -> None:
    rows = table_rows("docs/host-cost.md", "What a frame costs now")
    for (*_, frame, result, latency), (name, preset) in zip(rows, _COSTS, strict=True):
        case = host_case(name, preset)
        p50, p99 = latency.split(", ")
        assert is_rounded(frame, case["cpu_ms_per_frame"]), name
        assert is_rounded(result, case["cpu_ms_per_result"]), name
        assert is_rounded(p50, case["latency_ms"]["p50"]), name
        assert is_rounded(p99, case["latency_ms"]["p99"]), name


def test_the_groups_of_threads_are_those_of_the_files() -> None:
    rows = table_rows("docs/host-cost.md", "Where the time goes")
    for (_, *cells), (process, groups) in zip(rows, _GROUPS, strict=True):
        for cell, (name, preset) in zip(cells, _COSTS[:-1], strict=True):
            spent = sum(
                group["cpu_ms_per_frame"]
                for program, of in host_case(name, preset)["processes"].items()
                for group_name, group in of["groups"].items()
                if group_name in groups and re.match(process, program)
            )
            assert is_rounded(cell, spent), (name, groups)


def test_the_tables_of_soaks_are_those_of_their_files() -> None:
    names = sorted(path.name for path in (ROOT / "results").glob("soak_*.json"))
    text = section("docs/soak.md", "Measured")
    assert names or "has not been run" in text
    for name in names:
        assert verdict_table(content(name)) in text, name


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


def _p99_ratio(result: Any, case: str) -> float:
    return float(result["rows"][0]["cases"][case]["p99_ratio"])


def _macs_gone(result: Any, dnn: str) -> float:
    return float(100 * (1 - result["decomposed"][dnn]["macs"] / result["original"][dnn]["macs"]))


_STANDBY = "How fast: parameter `standby`"
#: Page, heading, figure as it is written, file, and how the figure is computed from it.
COMPUTED: list[tuple[str, str, str, str, Callable[[Any], float]]] = [
    ("scheduling", "On a GPU", "1.16", "important_gpu", lambda it: _p99_ratio(it, "priority, at most 2 launched")),
    ("scheduling", "On a GPU", "2.43", "important_gpu", lambda it: _p99_ratio(it, "priority")),
    ("isolation", _STANDBY, "0.07", "gpu_faults", lambda it: min(_gaps(it, "1: assert"))),
    ("isolation", _STANDBY, "0.12", "gpu_faults", lambda it: max(_gaps(it, "1: assert"))),
    ("isolation", _STANDBY, "0.40", "gpu_faults", lambda it: min(_gaps(it, "2: illegal address"))),
    ("isolation", _STANDBY, "0.41", "gpu_faults", lambda it: max(_gaps({"hot": it["hot"][-1:]}, "2: illegal address"))),
    ("isolation", _STANDBY, "0.57", "gpu_faults", lambda it: max(_gaps(it, "2: illegal address"))),
    ("isolation", _STANDBY, "4", "gpu_faults", lambda it: it["warm"][-1]["longest_gap_s"]["lane"]),
    ("isolation", _STANDBY, "7", "gpu_faults", lambda it: it["warm"][1]["longest_gap_s"]["lane"]),
    *(
        ("decomposition", "In three commands", "45", "demo_comparison", lambda it, dnn=dnn: _macs_gone(it, dnn))
        for dnn in ("lane", "object", "pedestrian")
    ),
]


@pytest.mark.parametrize(
    ("page", "heading", "figure", "name", "compute"), COMPUTED, ids=[f"{it[0]} {it[2]}" for it in COMPUTED]
)
def test_computed_figures(page: str, heading: str, figure: str, name: str, compute: Callable[[Any], float]) -> None:
    assert figure in figures(section(f"docs/{page}.md", heading))
    assert is_rounded(figure, compute(content(f"{name}.json")))
