"""The verdicts of a soak: pure functions of what was measured, each with its figure and limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.observation import NodeSample, Receipts
from multi_dnn_ros.benchmark.soak.plan import Window, Windows

PERCENTILES = (50, 95, 99)
#: Allowed growth of memory, and ratios of latency (at most) and of results (at least), from one window to the other.
MEMORY_GROWTH, LATENCY_RATIO, RESULTS_RATIO = 0.02, 1.10, 0.90
#: Allowed time from a fault until all DNNs serve, and from SIGINT to the end of the node, in seconds.
ANSWER_S, END_S = 30.0, 3.0


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
        return {
            "name": self.name,
            "value": self.value if math.isfinite(self.value) else None,
            "limit": f"{'at least' if self.at_least else 'at most'} {self.limit:g}",
            "unit": self.unit,
            "passed": self.passed,
            "note": self.note,
        }


def none_of(name: str, found: Sequence[str]) -> Verdict:
    """The check that nothing of this kind was found. found: one text for each thing that was."""
    return Verdict(name, len(found), 0, note="; ".join(found[:5]))


def accounts(streams: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Streams whose frames are not all accounted for; see :func:`discrepancy`. No stream at all fails, too."""
    wrong = [f"{name}: {found}" for name, counts in streams.items() if (found := discrepancy(counts))]
    return none_of("streams with inexact accounts", wrong if streams else ["there is no stream"])


def discrepancy(stream: Mapping[str, Any]) -> str:
    """The counts of a stream after its last frame, if they do not add up; otherwise empty.

    They add up if offered = received = published + dropped, nothing is pending, and published = observed. stream: as
    from Rig.accounts().
    """
    counts = {**stream, "dropped": sum(stream["dropped"].values())}
    exact = (
        counts["offered"] == counts["received"] == counts["published"] + counts["dropped"]
        and not counts["pending"]
        and counts["published"] == counts["observed"]
    )
    names = ("offered", "received", "published", "dropped", "pending", "observed")
    return "" if exact else ", ".join(f"{name} {counts[name]}" for name in names)


def resources(samples: Sequence[NodeSample], begin_s: float, windows: Windows) -> list[Verdict]:
    """Memory, file descriptors and threads of the node and its engine processes: medians of the two windows."""

    def medians(field: str) -> tuple[float, float]:
        found = []
        for window in (windows.reference, windows.last):
            values = [getattr(it, field) for it in samples if window.begin_s <= it.at_s - begin_s < window.end_s]
            found.append(float(np.median(values)) if values else math.nan)
        return found[0], found[1]

    verdicts = []
    for name, field in (("memory", "memory_bytes"), ("GPU memory", "gpu_bytes")):
        first, last = medians(field)
        if field == "gpu_bytes" and not any(it.gpu_bytes for it in samples):
            continue
        change = 100.0 * (last / first - 1.0) if first > 0 else math.nan
        note = f"{first / 2**20:.1f} to {last / 2**20:.1f} MiB"
        verdicts.append(Verdict(f"growth of {name}", change, 100.0 * MEMORY_GROWTH, "%", note))
    for name, field in (("file descriptors", "files"), ("threads", "threads")):
        first, last = medians(field)
        verdicts.append(Verdict(f"growth of {name}", last - first, 0, note=f"{first:g} to {last:g}"))
    return verdicts


def latency(receipts: Iterable[Receipts], begin_s: float, windows: Windows) -> list[Verdict]:
    """Ratio of each latency percentile, stamp to receipt, of all streams together. Lower latencies at the end pass."""
    found = list(receipts)
    first, last = (_percentiles(found, begin_s, window) for window in (windows.reference, windows.last))
    return [
        Verdict(f"latency p{percentile}, last window to reference", after / before if before else math.nan,
                LATENCY_RATIO, note=f"{before:.1f} to {after:.1f} ms")
        for percentile, before, after in zip(PERCENTILES, first, last, strict=True)
    ]  # fmt: skip


def results(receipts: Mapping[str, Receipts], begin_s: float, windows: Windows) -> Verdict:
    """Ratio of the numbers of results in the windows, of the stream with the smallest ratio; none in the reference
    window fails.
    """
    ratios = {}
    for stream, received in receipts.items():
        first, last = (
            len(received.between(begin_s + window.begin_s, begin_s + window.end_s))
            for window in (windows.reference, windows.last)
        )
        ratios[f"{stream}, {first} to {last}"] = last / first if first else math.nan
    lowest = min(ratios, key=lambda name: -1.0 if math.isnan(ratios[name]) else ratios[name], default="no stream")
    value = ratios.get(lowest, math.nan)
    return Verdict("results of each stream, last window to reference", value, RESULTS_RATIO, "", lowest, at_least=True)


def answered(what: str, times_s: Sequence[float | None]) -> Verdict:
    """Longest time from a fault until all DNNs had results again. times_s: of each fault; None: some DNN had none."""
    known = [time_s for time_s in times_s if time_s is not None]
    silent = len(times_s) - len(known)
    value = math.nan if silent or not known else max(known)
    note = f"{silent} of {len(times_s)} without a result" if silent else f"{len(times_s)} faults"
    return Verdict(f"all DNNs serve after {what}", value, ANSWER_S, "s", note)


def answer_s(dnns: Iterable[Iterable[Receipts]], fault_s: float) -> float | None:
    """Seconds from a fault until every DNN has had a result whose image was taken after it; None: one has had none.

    dnns: the receipts of each DNN.
    """
    firsts = []
    for receipts in dnns:
        found = [at_s for stream in receipts if (at_s := stream.first_after(fault_s)) is not None]
        if not found:
            return None
        firsts.append(min(found))
    return max(firsts) - fault_s if firsts else None


def ended(seconds: float, exit_code: int | None) -> Verdict:
    """How long the node needed to end after SIGINT; an exit code other than 0 fails."""
    return Verdict("end of the node", seconds if exit_code == 0 else math.nan, END_S, "s", f"exit code {exit_code}")


def _percentiles(receipts: Sequence[Receipts], begin_s: float, window: Window) -> list[float]:
    first_s, last_s = begin_s + window.begin_s, begin_s + window.end_s
    found = [latency_ms for stream in receipts for latency_ms in stream.between(first_s, last_s)]
    return [float(value) for value in np.percentile(found, PERCENTILES)] if found else [math.nan] * len(PERCENTILES)
