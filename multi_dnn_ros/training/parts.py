"""Divides rows into a training part and a validation part that share no recording.

Neighbouring frames of a recording are nearly equal: a score on frames between those that were trained on says little
about a road that the network has not seen.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.training.datasets import DatasetError

#: Share of the rows that is held out for selecting the best epoch.
CHOICE_SHARE = 0.05
#: Number of rows below which the best epoch may be selected by chance.
CHOICE_ROWS = 50
#: Largest share of the rows that is held out to reach that number, and that one recording may have to be held out.
MOST = 0.25
#: Number of rows left out between the parts of a recording that has to be cut in two: a second of most videos.
GAP = 25
_FRAME = re.compile(r"[_-]\d+$")


@dataclass(frozen=True)
class Split:
    """Row numbers of each part, ascending. Rows in neither lie at a cut through a recording."""

    train: list[int]
    choice: list[int]


def recording_of(stem: str) -> str:
    """The recording that an image file belongs to, by its name without suffix: that before the last `_<number>`, or the
    whole name.
    """
    return _FRAME.sub("", stem)


def split(recordings: Sequence[str], where: str) -> Split:
    """Hold out about CHOICE_SHARE of the rows, at least CHOICE_ROWS where that is at most MOST of them.

    recordings: of each row. If every row is a recording of its own, the held-out rows are evenly spaced; else whole
    recordings are held out; if those that are small enough have less than half of that, the end of the largest one. The
    same in every run. Raises DatasetError with `where` if there are fewer than two rows.
    """
    count = len(recordings)
    if count < 2:
        raise DatasetError(f"{where}: {count} images; at least two are needed, one of them to select the best epoch")
    wanted = max(1, min(max(CHOICE_ROWS, round(count * CHOICE_SHARE)), int(count * MOST)))
    rows: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(recordings):
        rows[name].append(index)
    if len(rows) == count:
        chosen = [int((k + 1) * count / wanted) - 1 for k in range(wanted)]
        return _without(count, chosen)
    held_out = _whole_recordings(rows, wanted, int(count * MOST))
    if 2 * len(held_out) >= wanted:
        return _without(count, held_out)
    largest = rows[max(rows, key=lambda name: (len(rows[name]), name))]
    wanted = min(wanted, len(largest) // 2)
    gap = min(GAP, (len(largest) - wanted) // 4)
    end = len(largest) - wanted
    return _without(count, largest[end:], largest[end - gap : end])


def _whole_recordings(rows: dict[str, list[int]], wanted: int, most: int) -> list[int]:
    """Rows of whole recordings, in an order that follows from their names, until there are `wanted`; at most `most`.

    If fewer than half of `wanted` come together so, the largest recording that fits, if it has more.
    """
    chosen: list[int] = []
    names = sorted(rows, key=lambda name: hashlib.sha256(name.encode()).digest())
    for name in names:
        if len(chosen) < wanted and len(chosen) + len(rows[name]) <= most:
            chosen += rows[name]
    if 2 * len(chosen) >= wanted:
        return chosen
    return max([chosen, *(rows[name] for name in names if len(rows[name]) <= most)], key=len)


def _without(count: int, choice: Sequence[int], unused: Sequence[int] = ()) -> Split:
    taken = {*choice, *unused}
    return Split([k for k in range(count) if k not in taken], sorted(choice))
