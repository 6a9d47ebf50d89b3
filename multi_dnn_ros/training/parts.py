"""Divides rows into a training part and a validation part that share no recording.

Neighbouring frames of a recording are nearly equal: if frames between the training frames are used for validation, the
score says little about a road that the network has not seen.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.training.datasets import DatasetError

#: Share of the rows that is held out for selecting the best epoch.
VALIDATION_SHARE = 0.05
#: Number of rows below which the best epoch may be selected by chance.
VALIDATION_ROWS = 50
#: Largest share of the rows that is held out to reach VALIDATION_ROWS. A larger recording is not held out whole.
MAX_SHARE = 0.25
#: Number of rows left out where a recording has to be cut in two: a second of most videos.
GAP = 25
_FRAME = re.compile(r"[_-]\d+$")


@dataclass(frozen=True)
class Split:
    """Row numbers of each part, ascending. Rows in neither part lie at a cut through a recording."""

    train: list[int]
    validation: list[int]


def recording_of(stem: str) -> str:
    """The recording of an image file, from its name without suffix: the part before `_<number>` or `-<number>` at its
    end, or the whole name.
    """
    return _FRAME.sub("", stem)


def evenly_spaced(wanted: int, count: int) -> list[int]:
    """`wanted` of `count` rows at even intervals, or all if there are no more: folders list one class after another."""
    return list(range(count)) if wanted >= count else [k * count // wanted for k in range(wanted)]


def split(recordings: Sequence[str], where: str) -> Split:
    """Hold out VALIDATION_SHARE of the rows, or VALIDATION_ROWS if that is more, but at most MAX_SHARE of them.

    recordings: the recording of each row. If every row is a recording of its own, evenly spaced rows are held out,
    otherwise whole recordings. If whole recordings yield less than half of the wanted number of rows, the end of the
    largest recording is held out instead. The result is the same in every run. Raises DatasetError, with `where` in its
    text, if there are fewer than two rows.
    """
    count = len(recordings)
    if count < 2:
        raise DatasetError(f"{where}: {count} images; at least two are needed, one of them to select the best epoch")
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    rows: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(recordings):
        rows[name].append(index)
    if len(rows) == count:
        chosen = [int((k + 1) * count / wanted) - 1 for k in range(wanted)]
        return _split_off(count, chosen)
    held_out = _whole_recordings(rows, wanted, int(count * MAX_SHARE))
    if 2 * len(held_out) >= wanted:
        return _split_off(count, held_out)
    largest = rows[max(rows, key=lambda name: (len(rows[name]), name))]
    wanted = min(wanted, len(largest) // 2)
    gap = min(GAP, (len(largest) - wanted) // 4)
    end = len(largest) - wanted
    return _split_off(count, largest[end:], largest[end - gap : end])


def _whole_recordings(rows: dict[str, list[int]], wanted: int, limit: int) -> list[int]:
    """Rows of whole recordings, added in an order that depends on their names until there are `wanted`, up to `limit`.

    If that yields fewer than half of `wanted`, the rows of the largest recording up to `limit`, if they are more.
    """
    chosen: list[int] = []
    names = sorted(rows, key=lambda name: hashlib.sha256(name.encode()).digest())
    for name in names:
        if len(chosen) < wanted and len(chosen) + len(rows[name]) <= limit:
            chosen += rows[name]
    if 2 * len(chosen) >= wanted:
        return chosen
    return max([chosen, *(rows[name] for name in names if len(rows[name]) <= limit)], key=len)


def _split_off(count: int, validation: Sequence[int], unused: Sequence[int] = ()) -> Split:
    taken = {*validation, *unused}
    return Split([k for k in range(count) if k not in taken], sorted(validation))
