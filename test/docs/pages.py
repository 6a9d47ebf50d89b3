"""The documents of the checkout, and their code blocks.

A block's info string is its language, then marks that say why the test does not run it (CONTRIBUTING.md lists them):
``bash ros`` needs a real ROS 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
#: Languages of blocks. Those of RUN are run or checked unless a mark says why not.
RUN, SHOWN = ("bash", "python", "yaml"), ("text", "toml", "mermaid")
#: Pages whose blocks are files of a package: tests of their own write, install and run it.
OWN_TESTS = {"docs/extending.md": "test/extensions/test_other_packages.py"}
#: Why a block is not run.
MARKS = {
    "ros": "needs a real ROS 2",
    "gpu": "needs a CUDA GPU",
    "root": "needs root",
    "long": "takes more than ten seconds, downloads packages, or does not end",
    "example": "needs files of the reader, or is a part of a file",
}


@dataclass(frozen=True)
class Block:
    """A fenced code block. line: of its first line in the page, counted from 1."""

    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str, text: str) -> list[Block]:
    found = []
    for match in re.finditer(r"^```(\S*)([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match[1], tuple(match[2].split()), match[3]))
    return found


BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]


def prose(text: str) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def inline_code(text: str) -> list[str]:
    """Code inside the text, also where it goes on in the next line."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(text))]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", prose(text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        anchor = re.sub(r"[^\w\- ]", "", plain).lower().replace(" ", "-")
        count = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
        found.add(f"{anchor}-{count}" if count else anchor)
    return found
