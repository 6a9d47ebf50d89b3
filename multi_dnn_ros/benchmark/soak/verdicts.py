"""The verdicts of a soak: pure functions of what was measured, each with its figure and limit."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.observation import NodeSample, Receipts
from multi_dnn_ros.benchmark.soak.plan import Window
from multi_dnn_ros.common.reporting import counts_text, table

#: Allowed growth of memory, and ratios of latency (at most) and of results (at least), from one window to the other.
MEMORY_GROWTH, LATENCY_RATIO, RESULTS_RATIO = 0.02, 1.10, 0.90
#: Allowed time from SIGINT to the end of the node, in seconds.
END_S = 3.0

Windows = tuple[Window, Window]


@dataclass(frozen=True)
class Verdict:
    """One check. value: the figure; NaN, which fails, if there is none. limit: the largest value that passes, or the
    smallest one with `at_least`. note: the windows compared, or what is wrong.
    """

    name: str
    value: float
    limit: float
    unit: str = ""
    note: str = ""
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def described(self) -> dict[str, Any]:
        """For JSON: NaN, which it lacks, becomes None."""
        value = self.value if math.isfinite(self.value) else None
        limit = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        return {**asdict(self), "value": value, "limit": limit, "passed": self.passed}


def none_of(name: str, found: Sequence[str]) -> Verdict:
    """The check that nothing of this kind was found. found: one text for each thing that was."""
    return Verdict(name, len(found), 0, note="; ".join(found[:5]))


def accounts(streams: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Streams whose counts, as from Rig.accounts(), do not add up after the last frame. No stream at all fails, too.

    They add up if offered = received = published + dropped, nothing is pending, and published = observed.
    """
    wrong = []
    for name, stream in streams.items():
        counts = {**stream, "dropped": sum(stream["dropped"].values())}
        exact = counts["offered"] == counts["received"] == counts["published"] + counts["dropped"]
        if not exact or counts["pending"] or counts["published"] != counts["observed"]:
            names = ("offered", "received", "published", "dropped", "pending", "observed")
            wrong.append(f"{name}: " + ", ".join(f"{key} {counts[key]}" for key in names))
    return none_of("streams with inexact accounts", wrong if streams else ["there is no stream"])


def resources(samples: Sequence[NodeSample], begin_s: float, windows: Windows) -> list[Verdict]:
    """Memory, file descriptors and threads of the node and its engine processes: medians of the two windows."""

    def medians(field: str) -> list[float]:
        parts = [[getattr(it, field) for it in samples if window.begin_s <= it.at_s - begin_s < window.end_s]
                 for window in windows]  # fmt: skip
        return [float(np.median(values)) if values else math.nan for values in parts]

    verdicts = []
    for name, field in {"memory": "memory_bytes", "GPU memory": "gpu_bytes"}.items():
        first, last = medians(field)
        if field == "memory_bytes" or any(sample.gpu_bytes for sample in samples):
            change = 100.0 * (last / first - 1.0) if first > 0 else math.nan
            note = f"{first / 2**20:.1f} to {last / 2**20:.1f} MiB"
            verdicts.append(Verdict(f"growth of {name}", change, 100.0 * MEMORY_GROWTH, "%", note))
    for name, field in {"file descriptors": "files", "threads": "threads"}.items():
        first, last = medians(field)
        verdicts.append(Verdict(f"growth of {name}", last - first, 0, note=f"{first:g} to {last:g}"))
    return verdicts


def latency(receipts: Iterable[Receipts], begin_s: float, windows: Windows) -> Verdict:
    """Ratio of the p95, stamp to receipt, of all streams together. A lower latency at the end passes."""
    found = list(receipts)
    spans = [(begin_s + window.begin_s, begin_s + window.end_s) for window in windows]
    latencies = [[latency_ms for stream in found for latency_ms in stream.between(*span)] for span in spans]
    before, after = (float(np.percentile(values, 95)) if values else math.nan for values in latencies)
    note = f"{before:.1f} to {after:.1f} ms"
    return Verdict(
        "latency p95, last window to reference", after / before if before else math.nan, LATENCY_RATIO, "", note
    )


def results(receipts: Mapping[str, Receipts], begin_s: float, windows: Windows) -> Verdict:
    """Ratio of the numbers of results in the windows, of the stream with the smallest ratio; none in the reference
    window fails.
    """
    ratios = {}
    for stream, received in receipts.items():
        first, last = (len(received.between(begin_s + it.begin_s, begin_s + it.end_s)) for it in windows)
        ratios[f"{stream}, {first} to {last}"] = last / first if first else -1.0
    lowest = min(ratios, key=ratios.__getitem__, default="no stream")
    value = ratios.get(lowest, -1.0)
    return Verdict("results of each stream, last window to reference", value, RESULTS_RATIO, "", lowest, at_least=True)


def ended(seconds: float, exit_code: int | None) -> Verdict:
    """How long the node needed to end after SIGINT; an exit code other than 0 fails."""
    return Verdict("end of the node", seconds if exit_code == 0 else math.nan, END_S, "s", f"exit code {exit_code}")


def soak_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal: the accounts, then the verdicts, with what failed in the last line."""
    accounts = [
        [name, *(str(counts[key]) for key in ("offered", "published", "observed")), counts_text(counts["dropped"])]
        for name, counts in figures["streams"].items()
    ]
    verdicts = [
        [
            verdict["name"],
            "none" if verdict["value"] is None else f"{verdict['value']:.3g} {verdict['unit']}".strip(),
            f"{verdict['limit']} {verdict['unit']}".strip(),
            "passed" if verdict["passed"] else "FAILED",
            textwrap.shorten(verdict["note"], 100, placeholder=" …"),
        ]
        for verdict in figures["verdicts"]
    ]
    windows = " and ".join(f"{it['begin_s']:g} to {it['end_s']:g} s" for it in figures["windows"])
    failed = [verdict["name"] for verdict in figures["verdicts"] if not verdict["passed"]]
    return "\n".join(
        [
            table(["stream", "offered", "published", "observed", "dropped"], accounts),
            table(["verdict", "figure", "limit", "", "note"], verdicts),
            f"windows compared: {windows}; rounds of {figures['round_s']:g} s; {len(figures['actions'])} actions",
            "passed" if not failed else f"FAILED: {'; '.join(failed)}",
        ]
    )
