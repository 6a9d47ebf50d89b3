"""Links between the documents lead to files and headings that exist, and files that the text names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import BLOCKS, PAGES, ROOT, anchors, inline_code, prose

#: Longest README: a reader who is new must find the next step without scrolling through a manual.
_README_LINES = 160
_FOLDERS = "deploy|docs|launch|multi_dnn_ros|test|tools"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    wrong = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(PAGES[page])):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists():
            wrong.append(target)
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            wrong.append(f"{target}: no such heading")
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_are_there(page: str) -> None:
    named = {
        code for code in inline_code(PAGES[page]) if re.fullmatch(rf"(?:config|results|{_FOLDERS})/[\w./-]+", code)
    }
    words = {word for block in BLOCKS if block.page == page for word in block.text.split()}
    named |= {word for word in words if re.fullmatch(rf"(?:{_FOLDERS})/[\w./-]+", word)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", PAGES["README.md"]))
    assert set(PAGES) - {"README.md"} - linked == set()


def test_the_readme_is_short() -> None:
    lines = len(PAGES["README.md"].splitlines())
    assert lines <= _README_LINES, f"README.md has {lines} lines of {_README_LINES}: move text to a page of docs/"


def test_anchors_are_those_of_github() -> None:
    text = "# A `b`: c, d\n\n```bash\n# no heading\n```\n## On a GPU\n## On a GPU\n## [x](y) & z\n"
    assert anchors(text) == {"a-b-c-d", "on-a-gpu", "on-a-gpu-1", "x--z"}


def test_pages_are_relative_to_the_checkout() -> None:
    """No document names a folder of the machine that it was written on."""
    for path in (*map(Path, PAGES), Path("CHANGELOG.rst")):
        assert "/work/" not in re.sub(r"`[^`]*`", "", (ROOT / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize("page", PAGES)
def test_tables_have_as_many_cells_in_each_row_as_in_the_first(page: str) -> None:
    """GitHub drops further cells without a word."""
    for table in re.findall(r"(?:^\|.*\n)+", prose(PAGES[page]), re.M):
        first, *rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert rows, f"{table}: a table without a second line is text"
        assert [row for row, cells in zip(table.splitlines()[1:], rows, strict=True) if cells != first] == []


@pytest.mark.parametrize("page", PAGES)
def test_html_in_the_text_is_meant(page: str) -> None:
    """`<name>` outside of code disappears on GitHub."""
    text = re.sub(r"``.*?``|`[^`]*`", "", prose(PAGES[page]))
    assert [tag for tag in re.findall(r"<[^>\n]*>", text) if not tag.startswith(("<!--", "<http"))] == []
