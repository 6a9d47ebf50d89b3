"""The figures of a soak as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from multi_dnn_ros.common.reporting import counts_text, table

#: Maximum length of a note in the table.
_MAX_NOTE = 100


def soak_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal: the accounts, then the verdicts, with what failed in the last line."""
    accounts = [
        [
            name,
            *(str(counts[key]) for key in ("offered", "published", "observed")),
            counts_text(counts["dropped"]),
        ]
        for name, counts in figures["streams"].items()
    ]
    actions = [
        f"{action}: " + (", ".join(f"{count} {result}" for result, count in results.items()) or "not part of this run")
        for action, results in figures["actions"].items()
    ]
    first, last = figures["windows"]["reference"], figures["windows"]["last"]
    engines = figures["engines"]
    failed = [verdict["name"] for verdict in figures["verdicts"] if not verdict["passed"]]
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
            f"{engines['oldest_s']:.0f} s old, so a leak in an engine process had no more time to grow",
            f"recorded by {figures['recorder']}",
            "passed" if not failed else f"FAILED: {'; '.join(failed)}",
        ]
    )


def verdict_table(figures: Mapping[str, Any]) -> str:
    """The verdicts as a Markdown table. Long notes are shortened here, not in the JSON file."""
    rows = [
        [
            verdict["name"],
            "none" if verdict["value"] is None else f"{verdict['value']:.3g} {verdict['unit']}".strip(),
            f"{verdict['limit']} {verdict['unit']}".strip(),
            "passed" if verdict["passed"] else "FAILED",
            textwrap.shorten(verdict["note"], _MAX_NOTE, placeholder=" …"),
        ]
        for verdict in figures["verdicts"]
    ]
    return table(["verdict", "figure", "limit", "", "note"], rows)
