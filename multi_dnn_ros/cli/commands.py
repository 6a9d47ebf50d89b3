"""Declares commands: every ``--help`` has one sentence on what the command does, details, options and examples."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from typing import Any

Commands = argparse._SubParsersAction  # what add_subparsers returns; argparse has no public name for it


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal's width; paragraphs with an indented line stay as they are written.

    Words are not broken at hyphens, so that options and commands can be copied.
    """

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
        return "\n\n".join(
            textwrap.indent(paragraph, indent)
            if re.search(r"^\s", paragraph, re.M)
            else _wrap(paragraph, width, indent)
            for paragraph in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrap(text, width).splitlines()


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    text: str | None,
    run: Callable[[argparse.Namespace], int] | None = None,
    *,
    details: str = "",
    examples: str = "",
    **defaults: Any,
) -> argparse.ArgumentParser:
    """Declare the command `name` and return its parser.

    text: its help, usually a docstring: a sentence that begins with a verb, which the list of commands shows too, then
    what to know before using it. details: more of that. examples: one command per line, unless `text` ends with them
    below a line `examples:`. run: does the work and returns the exit code; None for a command that has subcommands.
    defaults: as for set_defaults.
    """
    body, _, listed = textwrap.dedent(text or "").partition("examples:\n")
    summary, _, rest = body.strip().partition("\n\n")
    summary = summary.rstrip(".")
    shown = textwrap.indent(textwrap.dedent(listed or examples).strip("\n"), "  ")
    parser = commands.add_parser(
        name,
        help=f"{summary[0].lower()}{summary[1:]}",
        description="\n\n".join(filter(None, (f"{summary[0].upper()}{summary[1:]}.", rest, details))),
        epilog=f"examples:\n{shown}" if shown else None,
        formatter_class=HelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    parser.set_defaults(**defaults)
    return parser


def add_subcommands(parser: argparse.ArgumentParser, noun: str) -> Commands[argparse.ArgumentParser]:
    """Give `parser` subcommands; `noun` (singular) names them in the help, as in ``multi-dnn profile ACTION``."""
    return parser.add_subparsers(title=f"{noun}s", dest=noun, metavar=noun.upper(), required=True)


def _wrap(text: str, width: int, indent: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
