"""The overview of docs/measured.md has the figures of the sections that it links to, and leaves out no target."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from pages import PAGES
from test_figures import OVERVIEW, figures, sections

HEADER = ["what", "target", "measured", "result", "section"]
#: Text of each section, without that of deeper headings, by page (without docs/) and anchor.
TEXTS = {
    (page, anchor): text
    for page in ("measured.md", "host-cost.md")
    for _, anchor, text in sections(PAGES[f"docs/{page}"])
    if page != "measured.md" or anchor not in OVERVIEW
}


@dataclass(frozen=True)
class Row:
    """A row of a table. link: page (without docs/) and anchor of the section that its last cell links to."""

    what: str
    target: str
    measured: str
    result: str
    link: tuple[str, str]

    def figures(self) -> set[str]:
        return figures(" ; ".join((self.what, self.target, self.measured, self.result)))


def rows_of(text: str) -> list[Row]:
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        header, _, *lines = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        assert [cell.strip() for cell in header] == HEADER
        for *cells, link in lines:
            target = re.fullmatch(r"\[[^]]+\]\(([\w.-]*)#([\w-]+)\)", link)
            assert target is not None, f"{link}: the last cell must be a link to a section"
            found.append(Row(*cells, link=(target[1] or "measured.md", target[2])))
    return found


ROWS = [row for text in OVERVIEW.values() for row in rows_of(text)]


def missing(row: Row) -> set[str]:
    """Figures of a row that its section lacks."""
    return row.figures() - figures(TEXTS[row.link])


def test_there_is_a_table_for_each_area() -> None:
    assert [anchor for anchor, text in OVERVIEW.items() if rows_of(text)] == [
        "serving-on-a-cpu", "serving-on-a-gpu", "host-cost", "several-devices", "accuracy",
    ]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_figures_of_a_row_are_in_the_section_it_links_to(row: Row) -> None:
    assert row.link in TEXTS, f"no section {row.link}"
    assert missing(row) == set(), f"docs/{row.link[0]}#{row.link[1]} lacks figures of the overview"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_row_says_whether_its_target_is_met(row: Row) -> None:
    """A missed target has its reason, or says in which case it is missed."""
    if row.target == "-":
        assert row.result == "-"
    else:
        assert row.result == "met" or re.fullmatch(r"missed[:;]? \w.*", row.result)


def test_each_section_with_a_target_is_in_the_overview() -> None:
    with_target = {
        link for link, text in TEXTS.items() if link[0] == "measured.md" and re.search(r"\btargets?\b", text, re.I)
    }
    with_target.discard(("measured.md", "measured"))  # the introduction of the page
    assert len(with_target) > 10
    assert with_target - {row.link for row in ROWS} == set()


def test_a_figure_that_the_section_lacks_is_noticed() -> None:
    (row,) = rows_of(
        "| what | target | measured | result | section |\n|---|---|---|---|---|\n"
        "| demo, 640x480 | 38 ms | 4711 ms | missed: slow | [the demo](#the-demo) |\n"
    )
    assert missing(row) == {"4711"}
