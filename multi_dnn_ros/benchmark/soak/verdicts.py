"""The verdicts of a soak: pure functions of what was measured, each with its figure and limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.accounts import discrepancy
from multi_dnn_ros.benchmark.samples import Receipts
from multi_dnn_ros.benchmark.soak.plan import Window, Windows
from multi_dnn_ros.benchmark.soak.resources import SoakSample

PERCENTILES = (50, 95, 99)
#: Allowed growth of memory from one window to the other.
MEMORY_GROWTH = 0.02
#: Allowed ratio of a latency percentile in the last window to that in the reference window.
LATENCY_RATIO = 1.10
#: Required ratio of the number of results of a stream in the last window to that in the reference window.
RESULTS_RATIO = 0.90
#: Allowed growth of the medians of threads and file descriptors.
COUNT_GROWTH = 0.0
#: Allowed time from a fault to the first result of an image taken after it.
ANSWER_S = 30.0
#: In a shorter period of watching the overlay none may be drawn, as an engine process may be replaced meanwhile.
MIN_OVERLAY_S = 20.0
#: Required share of the published results in the recording.
RECORDED = 0.99
#: Allowed time from SIGINT to the end of the node.
END_S = 3.0


@dataclass(frozen=True)
class Verdict:
    """One check. value: the figure; NaN, which fails, if there is none. limit: the largest value that passes, or the
    smallest one with `at_least`. below: whether the limit itself fails. note: the windows compared, or what is wrong.
    """

    name: str
    value: float
    limit: float
    unit: str = ""
    note: str = ""
    at_least: bool = False
    below: bool = False

    @property
    def passed(self) -> bool:
        if self.at_least:
            return self.value >= self.limit
        return self.value < self.limit if self.below else self.value <= self.limit

    def described(self) -> dict[str, Any]:
        """For JSON: NaN, which it lacks, becomes None."""
        value = self.value if math.isfinite(self.value) else None
        comparison = "at least" if self.at_least else "below" if self.below else "at most"
        return {
            "name": self.name,
            "value": value,
            "limit": f"{comparison} {self.limit:g}",
            "unit": self.unit,
            "passed": self.passed,
            "note": self.note,
        }


def accounts(streams: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Streams whose frames are not all accounted for. streams: as from :func:`stream_accounts`."""
    wrong = [f"{name}: {found}" for name, counts in streams.items() if (found := discrepancy(counts))]
    return Verdict("streams with inexact accounts", len(wrong) if streams else math.nan, 0, note="; ".join(wrong))


def growth(name: str, samples: Sequence[tuple[float, float]], windows: Windows) -> Verdict:
    """Relative growth of the median of `samples`, (seconds since the beginning, value), between the windows."""
    first, last = _medians(samples, windows)
    change = last / first - 1.0 if first > 0 else (0.0 if last == 0 else math.nan)
    return Verdict(name, 100.0 * change, 100.0 * MEMORY_GROWTH, "%", f"{_shown(first)} to {_shown(last)}", below=True)


def count_growth(name: str, samples: Sequence[tuple[float, float]], windows: Windows) -> Verdict:
    """Growth of the median of a small number, such as threads."""
    first, last = _medians(samples, windows)
    return Verdict(name, last - first, COUNT_GROWTH, "", f"{first:g} to {last:g}")


def latency(receipts: Iterable[Receipts], begin_s: float, windows: Windows) -> list[Verdict]:
    """Ratio of each latency percentile, stamp to receipt, of all streams together. Lower latencies at the end pass."""
    found = list(receipts)
    first, last = (_percentiles(found, begin_s, window) for window in (windows.reference, windows.last))
    return [
        Verdict(
            f"latency p{percentile}, last window to reference",
            last[index] / first[index] if first[index] else math.nan,
            LATENCY_RATIO,
            note=f"{first[index]:.1f} to {last[index]:.1f} ms",
        )
        for index, percentile in enumerate(PERCENTILES)
    ]


def results(receipts: Mapping[str, Receipts], begin_s: float, windows: Windows) -> Verdict:
    """Ratio of the numbers of results in the windows, of the stream with the smallest ratio.

    A stream without results in the reference window fails: its latencies are in neither window.
    """
    name = "results of each stream, last window to reference"
    counts = {
        stream: [
            len(received.between(begin_s + window.begin_s, begin_s + window.end_s))
            for window in (windows.reference, windows.last)
        ]
        for stream, received in receipts.items()
    }
    silent = [stream for stream, (first, _) in counts.items() if not first]
    if silent or not counts:
        note = f"no results in the reference window: {', '.join(silent) or 'there is no stream'}"
        return Verdict(name, math.nan, RESULTS_RATIO, note=note, at_least=True)
    lowest = min(counts, key=lambda stream: counts[stream][1] / counts[stream][0])
    first, last = counts[lowest]
    return Verdict(name, last / first, RESULTS_RATIO, note=f"least: {lowest}, {first} to {last}", at_least=True)


def overlays(periods: Sequence[Mapping[str, Any]]) -> Verdict:
    """Periods of at least MIN_OVERLAY_S in which no overlay was received, and topics without any image in the run.

    periods: with `topic`, `seconds` and number of `images`.
    """
    missing = [
        f"{period['topic']} for {period['seconds']:.0f} s"
        for period in periods
        if not period["images"] and period["seconds"] >= MIN_OVERLAY_S
    ]
    seen = {period["topic"] for period in periods if period["images"]}
    topics = dict.fromkeys(period["topic"] for period in periods)
    never = [f"{topic} in the whole run" for topic in topics if topic not in seen]
    return none_of("overlays without an image", [*never, *missing])


def answered(what: str, faults: Sequence[float | None]) -> Verdict:
    """Longest time from a fault until all DNNs had results again. faults: that time; None: some DNN had no result."""
    silent = sum(time_s is None for time_s in faults)
    times = [time_s for time_s in faults if time_s is not None]
    value = math.nan if silent or not times else max(times)
    note = f"{silent} of {len(faults)} without a result" if silent else f"{len(faults)} faults"
    return Verdict(f"all DNNs serve after {what}", value, ANSWER_S, "s", note)


def none_of(name: str, found: Sequence[str]) -> Verdict:
    """The check that nothing of this kind was found. found: one text for each thing that was."""
    return Verdict(name, len(found), 0, note="; ".join(found[:5]))


def lost(restarts: int, kills: int) -> Verdict:
    """Engine processes that the node replaced after a loss, less those that the soak killed."""
    note = f"{restarts} restarts, {kills} kills"
    return Verdict("engine processes lost without a kill", max(0, restarts - kills), 0, note=note)


def recorded(published: Mapping[str, int], in_recording: Mapping[str, int] | None) -> Verdict:
    """Recorded share of the results, of the stream with the smallest share. in_recording: None if it is unreadable."""
    if in_recording is None:
        return Verdict("recorded results", math.nan, RECORDED, note="the recording cannot be read", at_least=True)
    shares = {name: in_recording.get(name, 0) / count for name, count in published.items() if count}
    if not shares:
        return Verdict("recorded results", math.nan, RECORDED, note="nothing was published", at_least=True)
    lowest = min(shares, key=lambda name: shares[name])
    return Verdict("recorded results", shares[lowest], RECORDED, note=f"least: {lowest}", at_least=True)


def ended(seconds: float, exit_code: int | None) -> Verdict:
    """How long the node needed to end after SIGINT; an exit code other than 0 fails."""
    value = seconds if exit_code == 0 else math.nan
    return Verdict("end of the node", value, END_S, "s", f"exit code {exit_code}")


def resources(samples: Sequence[SoakSample], begin_s: float, windows: Windows) -> list[Verdict]:
    """Memory, shared memory, file descriptors and threads."""

    def series(value: Callable[[SoakSample], float]) -> list[tuple[float, float]]:
        return [(sample.at_s - begin_s, value(sample)) for sample in samples]

    found = [
        growth("memory of the node and its engine processes", series(lambda s: s.memory_bytes), windows),
        growth("memory of the node's process", series(lambda s: s.node.anonymous_bytes), windows),
        growth("shared memory", series(lambda s: s.shared_bytes), windows),
    ]
    if any(sample.gpu_bytes for sample in samples):
        found.append(growth("GPU memory", series(lambda s: s.gpu_bytes), windows))
    return [
        *found,
        count_growth("file descriptors of the node's process", series(lambda s: s.node.files), windows),
        count_growth("file descriptors of engine processes", series(lambda s: s.engines.files), windows),
        count_growth("threads of the node's process", series(lambda s: s.node.threads), windows),
        count_growth("threads of engine processes", series(lambda s: s.engines.threads), windows),
    ]


def first_result_s(receipts: Iterable[Receipts], fault_s: float) -> float | None:
    """Seconds from a fault to the first result whose image was taken after it; None: there is none."""
    found = []
    for stream in receipts:
        at_s, taken_s = np.asarray(stream.at_s), np.asarray(stream.at_s) - np.asarray(stream.latency_ms) / 1e3
        after = at_s[(taken_s > fault_s) & (at_s > fault_s)]
        found += after[:1].tolist()
    return min(found) - fault_s if found else None


def answer_s(dnns: Iterable[Iterable[Receipts]], fault_s: float) -> float | None:
    """Seconds from a fault until every DNN has had a result whose image was taken after it; None: one has had none.

    dnns: the receipts of each DNN.
    """
    times = [first_result_s(receipts, fault_s) for receipts in dnns]
    found = [time_s for time_s in times if time_s is not None]
    return max(found) if found and len(found) == len(times) else None


def longest_pause_s(receipts: Iterable[Receipts], window: Window, begin_s: float) -> float:
    """Longest time without any result, the ends of the window included."""
    first, last = begin_s + window.begin_s, begin_s + window.end_s
    times = sorted(at_s for stream in receipts for at_s in stream.at_s if first <= at_s < last)
    return max(after - before for before, after in pairwise((first, *times, last)))


def _medians(samples: Sequence[tuple[float, float]], windows: Windows) -> tuple[float, float]:
    def median(window: Window) -> float:
        values = [value for at_s, value in samples if window.begin_s <= at_s < window.end_s]
        return float(np.median(values)) if values else math.nan

    return median(windows.reference), median(windows.last)


def _percentiles(receipts: Sequence[Receipts], begin_s: float, window: Window) -> list[float]:
    first_s, last_s = begin_s + window.begin_s, begin_s + window.end_s
    found = [latency_ms for stream in receipts for latency_ms in stream.between(first_s, last_s)]
    return [float(value) for value in np.percentile(found, PERCENTILES)] if found else [math.nan] * len(PERCENTILES)


def _shown(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
