"""A self-contained HTML page: no scripts, no other files, readable on a phone. All text is escaped here."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 60rem; margin: 0 auto;
       padding: 0 0.8rem 2rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #ccc; padding: 0.3rem 0.6rem 0.3rem 0; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #888; } th:first-child, td:first-child { text-align: left; }
table.text td, table.text th { text-align: left; }
img { max-width: 100%; height: auto; }
.better { color: #13682f; font-weight: 600; } .worse { color: #a31515; font-weight: 600; } .note { color: #555; }
code { font-size: 0.85rem; overflow-wrap: anywhere; }
"""


class Page:
    """Builds a page from top to bottom."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def paragraph(self, text: str, kind: str = "") -> None:
        """kind: `note` for small print."""
        self._parts.append(f'<p class="{html.escape(kind)}">{html.escape(text)}</p>')

    def code(self, text: str) -> None:
        self._parts.append(f"<p><code>{html.escape(text)}</code></p>")

    def bullets(self, texts: Sequence[str]) -> None:
        if texts:
            items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
            self._parts.append(f"<ul>{items}</ul>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> None:
        """text: whether the columns hold words, not numbers. A cell that is `better` or `worse` has a colour."""
        head = "".join(f"<th>{html.escape(each)}</th>" for each in header)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
        kind = ' class="text"' if text else ""
        self._parts.append(
            f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def figure(self, figure: Figure, alternative: str) -> None:
        """A plot as an embedded PNG. alternative: what it shows, for those who cannot see it."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        self._parts.append(f'<p><img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}"></p>')

    def text(self) -> str:
        """The whole document."""
        body = "\n".join(self._parts)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self._title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n"
            "</html>\n"
        )


def _cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("better", "worse") else ""
    return f"<td{kind}>{html.escape(text)}</td>"
