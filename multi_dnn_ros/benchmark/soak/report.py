"""The figures of a soak as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from multi_dnn_ros.common.reporting import counts_text, table

#: Most characters of a note in the table.
_NOTE = 100


def soak_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal: the accounts, then the verdicts, with what failed in the last line."""
    accounts = [
        [
            name,
            *(str(of[key]) for key in ("offered", "published", "observed")),
            counts_text(of["dropped"]),
        ]
        for name, of in figures["streams"].items()
    ]
    actions = [
        f"{action}: " + (", ".join(f"{count} {result}" for result, count in of.items()) or "not part of this run")
        for action, of in figures["actions"].items()
    ]
    first, last = figures["windows"]["reference"], figures["windows"]["last"]
    engines = figures["engines"]
    failed = [of["name"] for of in figures["verdicts"] if not of["passed"]]
    return "\n".join(
        [
            table(["stream", "offered", "published", "observed", "dropped"], accounts),
            "",
            verdict_table(figures),
            "",
            f"windows compared: {first['begin_s']:g} to {first['end_s']:g} s and "
            f"{last['begin_s']:g} to {last['end_s']:g} s; rounds of {figures['round_s']:g} s",
            "actions: " + "; ".join(actions),
            f"{engines['processes']} engine processes served, with {engines['restarts']} restarts; the oldest was "
            f"{engines['oldest_s']:.0f} s old, and no leak in an engine can grow for longer",
            f"recorded by {figures['recorder']}",
            "passed" if not failed else f"FAILED: {'; '.join(failed)}",
        ]
    )


def verdict_table(figures: Mapping[str, Any]) -> str:
    """The verdicts as a Markdown table, also for docs/soak.md. Long notes are shortened here, not in the JSON file."""
    rows = [
        [
            of["name"],
            "none" if of["value"] is None else f"{of['value']:.3g} {of['unit']}".strip(),
            f"{of['limit']} {of['unit']}".strip(),
            "passed" if of["passed"] else "FAILED",
            textwrap.shorten(of["note"], _NOTE, placeholder=" …"),
        ]
        for of in figures["verdicts"]
    ]
    return table(["verdict", "figure", "limit", "", "note"], rows)
