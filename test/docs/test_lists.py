"""Pages that list what can be chosen list all of it. `pytest test/docs/test_lists.py` names what is missing where."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable

import pytest
from pages import PAGES

from multi_dnn_ros.cli.main import build_parser
from multi_dnn_ros.engine.policies import POLICIES
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.vision.image_decoding import ENCODINGS


def choices(verb: str, name: str) -> tuple[str, ...]:
    """The subcommands, without former names, or the values of an option, of a verb."""
    (verbs,) = (action for action in build_parser([verb])._actions if isinstance(action, argparse._SubParsersAction))
    (action,) = (each for each in verbs.choices[verb]._actions if name in (each.dest, *each.option_strings))
    assert action.choices is not None
    if isinstance(action, argparse._SubParsersAction):
        return tuple(choice for choice, parser in action.choices.items() if parser.prog.endswith(f" {choice}"))
    return tuple(action.choices)


#: Page, heading above the table, what its rows are about, where a new one is added.
TABLES: list[tuple[str, str, Iterable[str], str]] = [
    ("docs/scheduling.md", "Policies", POLICIES, "POLICIES of multi_dnn_ros/engine/policies.py"),
    (
        "docs/troubleshooting.md",
        "Dropped frames",
        [reason.value for reason in DropReason],
        "DropReason of multi_dnn_ros/engine/task.py",
    ),
    (
        "docs/training.md",
        "decompose",
        choices("decompose", "--ranks"),
        "--ranks of multi_dnn_ros/cli/decompose.py",
    ),
    ("docs/training.md", "Parts of a data set", DATA_KINDS, "DATA_KINDS of multi_dnn_ros/training/data_kinds.py"),
    (
        "docs/benchmarks.md",
        "Benchmarks",
        choices("benchmark", "scenario"),
        "multi_dnn_ros/cli/benchmark.py",
    ),
]


def names_in_rows(page: str, heading: str) -> set[str]:
    """The words at the beginning of the code in the first column of the first table below a heading."""
    section = re.split(rf"^#+ {heading}$", PAGES[page], maxsplit=1, flags=re.M)[1]
    rows = (section + "\n").partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w-]+)", row.split(" | ")[0])}


@pytest.mark.parametrize(("page", "heading", "names", "source"), TABLES, ids=[f"{t[0]}-{t[1]}" for t in TABLES])
def test_a_table_has_a_row_for_each_name(page: str, heading: str, names: Iterable[str], source: str) -> None:
    rows = names_in_rows(page, heading)
    missing, unknown = sorted(set(names) - rows), sorted(rows - set(names))
    assert not missing, f"{page}, table below '{heading}': add a row for {', '.join(missing)} ({source})"
    assert not unknown, f"{page}, table below '{heading}': {', '.join(unknown)} does not exist ({source})"


def test_the_readme_lists_the_encodings() -> None:
    (row,) = re.findall(r"^\| in `front/image_raw` \|.*", PAGES["README.md"], re.M)
    named = set(re.findall(r"\w+", row))
    named |= {name for name in ENCODINGS if name.startswith("bayer_") and f"{re.sub('.*[a-z]', '', name)}-bit" in row}
    missing = sorted(ENCODINGS.keys() - named)
    assert not missing, f"README.md, row of front/image_raw: add {', '.join(missing)} (ENCODINGS of image_decoding.py)"
