"""Links between the documents lead to files and headings that exist, and files that the text names are there."""

from __future__ import annotations

import re

import pytest
from pages import BLOCKS, PAGES, ROOT, anchors, inline_code, prose

#: Longest README: a reader who is new must find the next step without scrolling through a manual.
_README_LINES = 160
#: A merge that brings old entries back makes the changelog longer.
_RELEASE_LINES = 60
_FOLDERS = "deploy|docs|launch|multi_dnn_ros|test|tools"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_that_are_named_are_there(page: str) -> None:
    wrong = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(PAGES[page])):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            wrong.append(target)
    named = {
        code for code in inline_code(PAGES[page]) if re.fullmatch(rf"(?:config|results|{_FOLDERS})/[\w./-]+", code)
    }
    words = {word for block in BLOCKS if block.page == page for word in block.text.split()}
    named |= {word for word in words if re.fullmatch(rf"(?:{_FOLDERS})/[\w./-]+", word)}
    assert wrong + [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_readme_is_short_and_links_every_page() -> None:
    assert len(PAGES["README.md"].splitlines()) <= _README_LINES, "move text to a page of docs/"
    linked = set(re.findall(r"\]\(([^)#]+)", PAGES["README.md"]))
    assert set(PAGES) - {"README.md"} - linked == set()


def test_releases_of_the_changelog_are_short_and_say_nothing_twice() -> None:
    text = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
    releases = re.split(r"^(?:Forthcoming|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\))\n-{5,}\n", text, flags=re.M)[1:]
    assert len(releases) > 1
    assert [release[:80] for release in releases if len(release.splitlines()) > _RELEASE_LINES] == []
    entries = [" ".join(entry.split()) for entry in re.findall(r"^\* (.+(?:\n  .+)*)", text, re.M)]
    assert len(set(entries)) == len(entries)
