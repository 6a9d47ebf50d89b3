"""docs/measured.md quotes no figure without the file it is from, and the README none that docs/measured.md lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Options that say where figures go and nothing about what was measured.
OUTPUTS = re.compile(r" --(?:output|out|plot|logs|summary|report) \S+")


def sections(page: str) -> list[tuple[int, str, str]]:
    """Level, anchor (as GitHub makes it) and own text, without that of deeper headings, of each section in turn."""
    parts = re.split(r"^(#+) (.+)$", page, flags=re.M)[1:]
    anchors = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in parts[1::3]]
    return [(len(marks), anchor, text) for marks, anchor, text in zip(parts[::3], anchors, parts[2::3], strict=True)]


def part(anchor: str) -> dict[str, str]:
    """A section and those under it, anchor: own text; empty if no section has this anchor."""
    found, texts = 0, {}
    for level, name, text in sections(PAGE):
        if found and level <= found:
            break
        if name == anchor or found:
            found = found or level
            texts[name] = text
    return texts


def whole(anchor: str) -> str:
    """Text of a section with all that is under it; empty if no section has this anchor."""
    return "".join(part(anchor).values())


#: The section that repeats figures of others, to which its rows link.
OVERVIEW = part("what-to-expect")


def figures(text: str) -> set[str]:
    """Numbers of a text, less those in code, link targets and names such as VGG16."""
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text)
    return set(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", text))


def sources(text: str) -> list[Path]:
    """Files under results/ that a text links to, and that hold figures."""
    return [ROOT / "results" / name for name in re.findall(r"\]\(\.\./results/([\w.]+\.json)\)", text)]


@pytest.mark.parametrize(
    ("anchor", "text"),
    [
        pytest.param(anchor, text, id=anchor)
        for _, anchor, text in sections(PAGE)[1:]
        if figures(text) and anchor not in OVERVIEW
    ],
)
def test_a_section_with_figures_names_the_files_they_are_from(anchor: str, text: str) -> None:
    assert sources(text), f"docs/measured.md#{anchor} has figures and names no file under results/"
    assert [str(path) for path in sources(text) if not path.is_file()] == []


def test_each_row_of_a_table_with_files_names_one() -> None:
    tables = [table for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.M) if table.splitlines()[0].endswith("| file |")]
    assert tables
    for row in [row for table in tables for row in table.splitlines()[2:]]:
        named = sources(row.split(" | ")[-1])
        assert named, row
        assert all(path.is_file() for path in named), row


def test_every_result_is_on_the_page() -> None:
    named = set(re.findall(r"\]\(\.\./results/([^)]+)\)", PAGE))
    assert {path.name for path in (ROOT / "results").iterdir()} - named == set()


def test_every_result_has_its_origin() -> None:
    for path in (ROOT / "results").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["command"], path
        assert content["versions"], path


def recorded(content: Any) -> Iterator[str]:
    """The commands in a result, at whatever depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key in ("command", "commands"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from recorded(value)
    elif isinstance(content, list):
        for value in content:
            yield from recorded(value)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param(name, command, id=name)
        for name, command in re.findall(r"^- \[`[^`]+`\]\(\.\./results/([^)]+)\): `([^`]+)`", PAGE, re.M)
    ],
)
def test_the_command_of_a_file_is_the_one_that_made_it(name: str, command: str) -> None:
    content = json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
    assert OUTPUTS.sub("", command) in {OUTPUTS.sub("", each) for each in recorded(content)}


def test_what_to_expect_has_the_figures_of_the_sections_it_links_to() -> None:
    rows = re.findall(r"^\| (.+) \| \[[^]]+\]\(#([\w-]+)\) \|$", OVERVIEW["what-to-expect"], re.M)
    assert len(rows) > 5
    for row, anchor in rows:
        assert whole(anchor), f"docs/measured.md has no section {anchor}"
        assert figures(row) <= figures(whole(anchor)), row


def test_figures_in_the_readme_are_those_of_the_sections_it_links_to() -> None:
    measured = README[README.index("\n## Measured\n") : README.index("\n## Documentation\n")]
    units = [unit for unit in re.split(r"\n\n|\n(?=\|)", measured) if figures(unit)]
    assert len(units) > 3
    for unit in units:
        linked = [whole(anchor) for anchor in re.findall(r"\]\(docs/measured\.md#([\w-]+)\)", unit)]
        assert linked, unit
        assert all(linked), f"docs/measured.md lacks a section linked in: {unit}"
        assert figures(unit) <= {figure for text in linked for figure in figures(text)}, unit
