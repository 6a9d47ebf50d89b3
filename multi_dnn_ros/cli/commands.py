"""Declare commands: every ``--help`` has one sentence on what the command does, details, options and examples."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
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


class GroupedCommands(argparse._SubParsersAction):
    """Subcommands that :func:`grouped` lists under headings, which argparse does not offer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.summaries: dict[str, str] = {}

    def add_parser(self, name: str, *, help: str | None = None, **kwargs: Any) -> Any:  # noqa: A002  argparse's own name
        self.summaries[name] = help or ""
        return super().add_parser(name, **kwargs)


def grouped(groups: Mapping[str, Sequence[str]], summaries: Mapping[str, str]) -> str:
    """The summaries of commands under the headings of their groups."""
    width = max(map(len, summaries)) + 2
    return "\n\n".join(
        "\n".join((f"{heading}:", *(f"  {name:<{width}}{summaries[name]}" for name in names)))
        for heading, names in groups.items()
    )


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    summary: str,
    *,
    details: str = "",
    examples: str = "",
    run: Callable[[argparse.Namespace], int] | None = None,
    aliases: Sequence[str] = (),
    **defaults: Any,
) -> argparse.ArgumentParser:
    """Declare the command `name` and return its parser.

    summary: what it does, as one sentence without a full stop that begins with a verb in lower case; the list of
    commands and the first line of the command's help show it. details: what to know before using it. examples: one
    command per line. run: does the work and returns the exit code; None for a command that has subcommands. aliases:
    former names, which are accepted and not listed. defaults: as for set_defaults.
    """
    paragraphs = [f"{summary[0].upper()}{summary[1:]}.", *([details] if details else [])]
    parser = commands.add_parser(
        name,
        help=summary,
        description="\n\n".join(paragraphs),
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  ") if examples else None,
        formatter_class=HelpFormatter,
    )
    for alias in aliases:
        commands.choices[alias] = parser  # accepted, but not listed
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
