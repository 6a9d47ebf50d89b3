"""Figures of docs/measured.md are those of the files that their section names.

Each figure of three digits and more must be a value of a file, rounded to the digits that it is written with: as it
stands, in percent, in another unit, or as what is missing to 100 %. A wrong figure may be another value of a large file
by chance, so the figures that the README quotes, and those that are computed from several values, are compared one by
one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from test_figures import PAGE, ROOT, figures, sections, sources, whole

_LEAST_DIGITS = 3
#: Units: percent, milli, kilo, micro, MiB.
_SCALES = (1.0, 100.0, 1e3, 1e-3, 1e-6, 2.0**-20)
#: A longer list of numbers is samples, and no figure is one of these.
_SAMPLES = 12
#: Figures that are no value of a file: settings, arguments, rates and sums that test_computed_figures compares or that
#: the text derives, and figures of runs of which no file is kept, as the text says.
_NOT_IN_FILES = {
    "the-demo": {"212992", "4194304"},
    "parallel-branches-of-one-image": set(),
}


@cache
def content(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def values_of(value: Any) -> Iterator[float]:
    """The numbers in a result, also those in its texts."""
    if isinstance(value, dict):
        for each in value.values():
            yield from values_of(each)
    elif isinstance(value, list):
        if len(value) <= _SAMPLES or not all(isinstance(each, (int, float)) for each in value):
            for each in value:
                yield from values_of(each)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"(?<![\w.])\d+(?:\.\d+)?", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def is_rounded(figure: str, value: float) -> bool:
    """Whether a figure as it is written is this value, rounded to its digits."""
    written = figure.replace(",", "")
    step = 10.0 ** -len(written.partition(".")[2])
    return abs(value - float(written)) <= step / 2 * (1 + 1e-6)


def is_in(figure: str, values: set[float]) -> bool:
    return any(
        is_rounded(figure, abs(value) * scale) for value in values for scale in _SCALES
    ) or any(is_rounded(figure, 100.0 * (1.0 - value)) for value in values)  # fmt: skip


def long_figures(text: str) -> set[str]:
    return {
        figure
        for figure in figures(text)
        if len(figure.replace(".", "").replace(",", "").lstrip("0")) >= _LEAST_DIGITS and figure.count(".") < 2
    }


def files_of(text: str) -> list[str]:
    """Files that a section links to, and those of the sections to which its line of files refers."""
    found = [path.name for path in sources(text)]
    for line in re.findall(r"^Files: those of .+(?:\n.+)*", text, re.M):
        for anchor in re.findall(r"\]\(#([\w-]+)\)", line):
            found += [path.name for path in sources(whole(anchor))]
    return found


@pytest.mark.parametrize(
    ("anchor", "text"),
    [
        pytest.param(anchor, text, id=anchor)
        for _, anchor, text in sections(PAGE)[1:]
        if sources(text) and long_figures(text)
    ],
)
def test_figures_are_values_of_the_files(anchor: str, text: str) -> None:
    values = {value for name in files_of(text) for value in values_of(content(name))}
    expected = _NOT_IN_FILES.get(anchor, set())
    assert expected <= long_figures(text), f"_NOT_IN_FILES[{anchor!r}] names figures that the section lacks"
    missing = {figure for figure in long_figures(text) - expected if not is_in(figure, values)}
    assert not missing, f"docs/measured.md#{anchor}: no value of {', '.join(files_of(text))}"


def _score(result: Any, data: str, network: int, score: str) -> float:
    (scores,) = result["sets"][data]["networks"][network]["scores"].values()
    return float(scores[score])


COMPUTED: list[tuple[str, str, str, Callable[[Any], float]]] = [
    ("the-demo", "43", "demo.json", lambda it: max(dnn["latency_ms"]["p95"] for dnn in it["dnns"].values())),
    ("the-demo", "150", "demo.json", lambda it: min(dnn["accounts"]["published"] for dnn in it["dnns"].values())),
    *(
        ("decomposed-and-retrained", figure, "decomposed_scores.json", lambda it, at=at: _score(it, *at))
        for figure, at in (
            ("0.931", ("object", 0, "map50")),
            ("0.924", ("object", 1, "map50")),
            ("0.875", ("pedestrian", 0, "map50")),
            ("0.862", ("pedestrian", 1, "map50")),
            ("0.987", ("lane", 0, "f1")),
            ("0.986", ("lane", 1, "f1")),
            ("0.970", ("drive", 0, "f1")),
            ("0.969", ("drive", 1, "f1")),
        )
    ),
    ("installation", "5298", "install_size.json", lambda it: it["installed_mb"]["after"]["serving"]),
    ("installation", "4955", "install_size.json", lambda it: it["installed_mb"]["after"]["pytorch"]),
]


@pytest.mark.parametrize(("anchor", "figure", "name", "compute"), COMPUTED, ids=[f"{it[0]}-{it[1]}" for it in COMPUTED])
def test_computed_figures(anchor: str, figure: str, name: str, compute: Callable[[Any], float]) -> None:
    assert figure in figures(whole(anchor))
    assert is_rounded(figure, compute(content(name)))


def test_a_wrong_figure_is_noticed() -> None:
    assert is_rounded("0.76", 0.7633)
    assert not is_rounded("0.76", 0.77)
    assert is_rounded("56,578", 56578.0)
    assert is_in("52.5", {0.475})
    assert not is_in("52.5", {0.5, 1.0})
