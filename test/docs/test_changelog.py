"""CHANGELOG.rst: short releases, each with its changes in groups, and no entry twice."""

from __future__ import annotations

import re

from pages import ROOT

TEXT = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
GROUPS = ("Added", "Changed", "Removed", "Fixed")
#: Lines of a release. A merge that brings old entries back exceeds it.
_MOST_LINES = 60


def releases() -> dict[str, str]:
    """Text of each release by its title."""
    parts = re.split(r"^(.+)\n-{5,}\n", TEXT, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_releases_have_a_version_and_a_date() -> None:
    first, *others = releases()
    assert re.fullmatch(r"Forthcoming|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", first)
    assert others
    assert [title for title in others if not re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title)] == []


def test_changes_are_grouped_and_few() -> None:
    for title, text in releases().items():
        groups = re.findall(r"^\*\*(.+)\*\*$", text, re.M)
        assert groups == [group for group in GROUPS if group in groups], title
        assert text.index("**") < text.index("\n* "), f"{title}: an entry stands before the first group"
        assert len(text.splitlines()) <= _MOST_LINES, f"{title}: merge entries, or shorten them"


def test_no_entry_is_there_twice() -> None:
    entries = [" ".join(entry.split()) for entry in re.findall(r"^\* (.+(?:\n  .+)*)", TEXT, re.M)]
    assert entries
    assert len(set(entries)) == len(entries)
