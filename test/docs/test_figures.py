"""docs/measured.md quotes only figures of files under results/, and the README only figures of docs/measured.md.

Each figure of three digits and more must be a value of a file that its section links to, rounded to the digits that it
is written with: as it stands, in percent, in another unit, or as what is missing to 100 %.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pages import PAGES, ROOT

PAGE, README = PAGES["docs/measured.md"], PAGES["README.md"]
RESULTS = ROOT / "results"
_LEAST_DIGITS = 3
#: Units: percent, milli, kilo, micro, MiB.
_SCALES = (1.0, 100.0, 1e3, 1e-3, 1e-6, 2.0**-20)
#: A longer list of numbers is samples, and no figure is one of these.
_SAMPLES = 12


def sections(page: str) -> list[tuple[int, str, str]]:
    """Level, anchor (as GitHub makes it) and own text, without that of deeper headings, of each section in turn."""
    parts = re.split(r"^(#+) (.+)$", page, flags=re.M)[1:]
    anchors = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in parts[1::3]]
    return [(len(marks), anchor, text) for marks, anchor, text in zip(parts[::3], anchors, parts[2::3], strict=True)]


def whole(anchor: str) -> str:
    """Text of a section of docs/measured.md with all that is under it; empty if no section has this anchor."""
    found, texts = 0, []
    for level, name, text in sections(PAGE):
        if found and level <= found:
            break
        if name == anchor or found:
            found = found or level
            texts.append(text)
    return "".join(texts)


def figures(text: str) -> set[str]:
    """Numbers of a text, less those in code, link targets and names such as VGG16."""
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    return set(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", text))


def files_of(text: str) -> list[str]:
    """Files under results/ that a text links to, and that hold figures."""
    return re.findall(r"\]\(\.\./results/([\w.]+\.json)\)", text)


@cache
def values_in(name: str) -> frozenset[float]:
    return frozenset(_values(json.loads((RESULTS / name).read_text(encoding="utf-8"))))


def _values(value: Any) -> Iterator[float]:
    """The numbers in a result, also those in its texts."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list):
        if len(value) <= _SAMPLES or not all(isinstance(each, (int, float)) for each in value):
            for each in value:
                yield from _values(each)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"(?<![\w.])\d+(?:\.\d+)?", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def is_in(figure: str, values: frozenset[float]) -> bool:
    written = figure.replace(",", "")
    most = 10.0 ** -len(written.partition(".")[2]) / 2 * (1 + 1e-6)  # what rounding may change
    found = {abs(value) * scale for value in values for scale in _SCALES} | {100.0 * (1.0 - value) for value in values}
    return any(abs(value - float(written)) <= most for value in found)


#: What repeats figures of other sections, to which its rows link.
OVERVIEW = "what-to-expect"
SECTIONS = [
    pytest.param(text, id=anchor) for _, anchor, text in sections(PAGE)[1:] if figures(text) and anchor != OVERVIEW
]


@pytest.mark.parametrize("text", SECTIONS)
def test_figures_are_values_of_the_files_that_their_section_names(text: str) -> None:
    names = files_of(text)
    assert names, "the section has figures and names no file under results/"
    values = frozenset[float]().union(*map(values_in, names))
    long = {figure for figure in figures(text) if len(re.sub(r"[.,]|^0[.,]0*", "", figure)) >= _LEAST_DIGITS}
    wrong = {figure for figure in long if figure.count(".") < 2 and not is_in(figure, values)}
    assert not wrong, f"no value of {', '.join(names)}"


def test_every_result_is_quoted_and_has_its_origin() -> None:
    named = set(re.findall(r"\]\((?:\.\./)?results/([^)]+)\)", "".join(PAGES.values())))
    assert {path.name for path in RESULTS.iterdir()} == named
    for path in RESULTS.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["command"], path
        assert content["versions"], path


def test_what_to_expect_has_the_figures_of_the_sections_it_links_to() -> None:
    rows = re.findall(r"^\| (.+) \| \[[^]]+\]\(#([\w-]+)\) \|$", whole(OVERVIEW), re.M)
    assert len(rows) > 5
    for row, anchor in rows:
        assert figures(row) <= figures(whole(anchor)), row


def test_figures_in_the_readme_are_those_of_the_sections_it_links_to() -> None:
    measured = README[README.index("\n## Measured\n") : README.index("\n## Documentation\n")]
    units = [unit for unit in re.split(r"\n\n|\n(?=\|)", measured) if figures(unit)]
    assert len(units) > 3
    for unit in units:
        linked = [whole(anchor) for anchor in re.findall(r"\]\(docs/measured\.md#([\w-]+)\)", unit)]
        assert linked, unit
        assert figures(unit) <= {figure for text in linked for figure in figures(text)}, unit


def test_precision_and_recall_at_the_thresholds_of_the_built_in_dnns() -> None:
    rows = re.findall(
        r"^\| `builtin:(\w+)` \| (streets|highway|\w+) \| ([\d.]+) \|(.+)\|$", PAGES["docs/models.md"], re.M
    )
    networks = json.loads((RESULTS / "builtin_real_roads.json").read_text(encoding="utf-8"))["networks"]
    assert rows
    for network, data, threshold, cells in rows:
        points = networks[network]["operating_points"][data]
        (point,) = [each for each in points if each["threshold"] == float(threshold)]
        for figure, name in zip(cells.split("|"), ("precision", "recall", "false_per_image"), strict=True):
            if figure.strip() == "-":
                assert point[name] is None, (network, data, name)
            else:
                assert is_in(figure.strip(), frozenset({point[name]})), (network, data, name)


def test_the_models_that_agree_with_their_references_are_named() -> None:
    rows = json.loads((RESULTS / "models.json").read_text(encoding="utf-8"))["rows"]
    agree = [row["name"] for row in rows if row["agreement"] >= 0.99]
    assert len(agree) >= 20
    page = " ".join(PAGES["docs/models.md"].split())
    assert [name for name in agree if name not in page] == []
