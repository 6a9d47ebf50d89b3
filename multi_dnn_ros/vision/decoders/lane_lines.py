"""Detects lane lines in a binary mask: groups its pixels into lines and joins the dashes of a line.

Every row of the mask is split into runs of set pixels. Runs that touch one-to-one from row to row form a chain; a chain
ends where lines merge or split. A piece is a chain with a curve fitted to it. Two pieces belong to one line if each,
extended along its direction, meets the end of the other, up to the uncertainty of the direction and some curvature of
the line. The direction of a longer piece is more certain. The pair that fits best is joined first, and the joined piece
is compared with the remaining ones.

Coordinates are pixels of the mask: u is the column, v the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.decoders.curve_fits import Floats, Groups, Integers, fit_curve, fit_curves

#: Only this many pieces, the longest ones, are considered; all pairs are then compared in a fraction of a millisecond.
MAX_PIECES = 48
#: Only this many chains of runs, the longest ones, become pieces; noise yields thousands of chains.
MAX_CHAINS = 256
# Lengths relative to the width of the mask.
_NOISE = 0.6 / 320  # standard deviation of a run's center, perpendicular to the line
_SHORTEST_PIECE = 3.0 / 320
_SHORTEST_LINE = 14.0 / 320
_THICKEST_LINE = 20.0 / 320
_LONGEST_GAP = 0.35
_WIDEST_MISS = 6.0 / 320
_LONGEST_GAP_PER_LENGTH = 8.0  # relative to the length of the longer piece
_CURVATURE = 0.35  # maximum deviation of a line from its tangent: this * gap^2 / mask width
_MAX_SLOPE = 14.0  # columns per row; flatter lines are not lane lines of the road ahead
_MIN_ROWS_OF_CURVE = 12  # the curvature of lines with fewer rows would be noise
_MIN_ELONGATION = 2.5  # length of a line divided by its thickness; blobs have less

# Rows of a table of pieces, (_ROWS, P) float64: the curve; u, v, slope du/dv and sqrt(1 + slope^2), each at the upper
# and at the lower end; length along the piece and thickness across it in pixels; standard error of the direction, in
# pixels across the piece per pixel along it.
_C0, _C1, _C2 = range(3)
_TOP, _BOTTOM, _FIRST_ROW, _LAST_ROW, _TOP_SLOPE, _BOTTOM_SLOPE, _TOP_NORM, _BOTTOM_NORM = range(3, 11)
_LENGTH, _THICKNESS, _DIRECTION, _ROWS = range(11, 15)


@dataclass(frozen=True)
class Runs:
    """Runs of set pixels, row by row, from left to right.

    row, begin, end: (K,) row, first column, and one past the last column of each run.
    """

    row: Integers
    begin: Integers
    end: Integers

    @property
    def center(self) -> Floats:
        """(K,) middle column of each run."""
        return (self.begin + self.end - 1) / 2.0


def find_runs(mask: npt.NDArray[np.uint8]) -> Runs:
    """The runs of a mask (h, w) of 0 and 1."""
    height, width = mask.shape
    stride = width + 1
    # A zero before the first row and after each row, so that edges alternate between begin and end of a run.
    padded = np.zeros(1 + height * stride, np.uint8)
    padded[1:].reshape(height, stride)[:, :width] = mask
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    row = edges[0::2] // stride
    return Runs(row, edges[0::2] - row * stride, edges[1::2] - row * stride)


@dataclass(frozen=True)
class Lines:
    """Lane lines, the longest first.

    curves: (L, 3) c0, c1, c2 of u = c0 + c1 v + c2 v^2. first_row, last_row: (L,) rows between which each line lies.
    of_run: (K,) number of each run's line, from 0; -1: none.
    """

    curves: Floats
    first_row: Integers
    last_row: Integers
    of_run: Integers


def group_runs(runs: Runs, width: int) -> Lines:
    """Group the runs of a mask of `width` columns into lane lines.

    Runs of specks, blobs and horizontal bars belong to no line.
    """
    members, counts = _chains(runs, width)
    if not len(counts):
        return _no_lines(len(runs.row))
    pieces = _fit(runs, members, counts, width)
    length = pieces[_LENGTH]
    chosen = ((length >= _SHORTEST_PIECE * width) & (pieces[_THICKNESS] <= _THICKEST_LINE * width)).nonzero()[0]
    chosen = chosen[(-length[chosen]).argsort(kind="stable")[:MAX_PIECES]]
    ends = counts.cumsum()
    bounds = zip((ends - counts)[chosen].tolist(), ends[chosen].tolist(), strict=True)
    pieces, groups = _join(runs, pieces[:, chosen], [members[begin:end] for begin, end in bounds], width)

    length = pieces[_LENGTH]
    slope = (pieces[_BOTTOM] - pieces[_TOP]) / np.maximum(pieces[_LAST_ROW] - pieces[_FIRST_ROW], 1.0)
    is_line = length >= np.maximum(_SHORTEST_LINE * width, _MIN_ELONGATION * pieces[_THICKNESS])
    chosen = (is_line & (np.abs(slope) <= _MAX_SLOPE)).nonzero()[0]
    chosen = chosen[(-length[chosen]).argsort(kind="stable")]
    found = _no_lines(len(runs.row))
    if not len(chosen):
        return found
    lines = pieces[:, chosen]
    of_lines = [groups[index] for index in chosen.tolist()]
    found.of_run[np.concatenate(of_lines)] = np.arange(len(chosen)).repeat([len(group) for group in of_lines])
    first_row, last_row = lines[_FIRST_ROW : _LAST_ROW + 1].astype(np.int64)
    return Lines(lines[: _C2 + 1].T, first_row, last_row, found.of_run)


def _no_lines(runs: int) -> Lines:
    """No lines among this many runs."""
    none = np.empty(0, np.int64)
    return Lines(np.empty((0, 3)), none, none, np.full(runs, -1))


def _describe(curve: Iterable[Any], first_row: Any, last_row: Any, run_width: Any, width: int) -> list[Any]:
    """The rows of the table, for one piece as floats or for P pieces as arrays (P,).

    curve: c0, c1, c2. run_width: median width of the runs of a piece. width: of the mask.
    """
    c0, c1, c2 = curve
    top, bottom = (c0 + row * (c1 + row * c2) for row in (first_row, last_row))
    top_slope, bottom_slope = (c1 + 2.0 * c2 * row for row in (first_row, last_row))
    steps = last_row - first_row
    # Computed from the curve, not from the runs in the end rows, which are cut short at the end of a shallow line.
    slope = (bottom - top) / (steps + (steps < 1.0))
    stretch = (1.0 + slope * slope) ** 0.5
    length = (steps + 1.0) * stretch
    # The standard error for n points, evenly spaced over a length l, is noise * sqrt(12 / n) / l. There is about one
    # run per pixel, so l stands for n.
    direction = _NOISE * width * 12.0**0.5 / (length * length**0.5)
    top_norm, bottom_norm = ((1.0 + slope * slope) ** 0.5 for slope in (top_slope, bottom_slope))
    ends = [top, bottom, first_row, last_row, top_slope, bottom_slope, top_norm, bottom_norm]
    return [c0, c1, c2, *ends, length, run_width / stretch, direction]


def _chains(runs: Runs, width: int) -> tuple[Integers, Integers]:
    """Chains of runs that touch one-to-one in adjacent rows (8-connected), at most the MAX_CHAINS longest.

    Returns (K,) indices of their runs, chain after chain, each from the upper end down, and (C,) the number of runs of
    each chain. Chains that are certainly too short for a piece are left out.
    """
    count, stride = len(runs.row), width + 1
    row_begins = runs.row * stride
    begins, ends = row_begins + runs.begin, row_begins + runs.end  # ascending: the runs of a row do not overlap
    # Run i touches the runs first[i] to last[i] - 1 of the row above.
    first = ends.searchsorted(begins - stride)
    last = begins.searchsorted(ends - stride, "right")
    below = (np.bincount(first, minlength=count + 1) - np.bincount(last, minlength=count + 1)).cumsum()
    follows = (last - first == 1) & (below.take(first) == 1)
    lower = follows.nonzero()[0]
    # The first run of each run's chain, by pointer doubling.
    head_of = np.arange(count)
    head_of[lower] = above = first[lower]
    while (further := head_of.take(above)).tobytes() != above.tobytes():
        head_of[lower] = above = further

    tail_of = np.empty(count, np.intp)
    tail_of[head_of] = np.arange(count)  # the last run of each chain is assigned last
    heads = (~follows).nonzero()[0]
    tails = tail_of[heads]
    center = runs.center
    length = np.hypot(center[tails] - center[heads], runs.row[tails] - runs.row[heads])
    # Leaves out only chains of one or two runs: longer ones can become pieces in a mask of any width up to 640.
    chosen = (2.0 * (length + 1.0) >= _SHORTEST_PIECE * width).nonzero()[0]
    if len(chosen) > MAX_CHAINS:
        chosen = chosen[(-length[chosen]).argsort(kind="stable")[:MAX_CHAINS]]
        chosen.sort()
    heads, tails = heads[chosen], tails[chosen]
    counts = runs.row[tails] - runs.row[heads] + 1
    number = np.full(count, MAX_CHAINS, np.uint16)  # sorted several times faster than int64
    number[heads] = np.arange(len(heads))
    return number.take(head_of).argsort(kind="stable")[: counts.sum()], counts


def _fit(runs: Runs, members: Integers, counts: Integers, width: int) -> Floats:
    """The table of the pieces that chains of runs are, see _chains."""
    groups = Groups(counts)
    v = runs.row.take(members).astype(np.float64)
    run_width = (runs.end - runs.begin).take(members)
    first_row, last_row = v[groups.begins], v[groups.begins + counts - 1]
    curved = (last_row - first_row + 1.0 >= _MIN_ROWS_OF_CURVE) & (counts > 2)
    curves = fit_curves(v, runs.center.take(members), groups, curved)
    return np.array(_describe(curves, first_row, last_row, groups.medians(run_width), width))


def _fit_joined(runs: Runs, members: Integers, ends: tuple[float, float], width: int) -> Floats:
    """The column of the table for the piece that consists of these runs (K,). ends: its first and last row."""
    run_width = runs.end.take(members) - runs.begin.take(members)
    center = runs.begin.take(members) + 0.5 * (run_width - 1.0)
    curved = ends[1] - ends[0] + 1.0 >= _MIN_ROWS_OF_CURVE and len(members) > 2
    curve = fit_curve(runs.row.take(members).astype(np.float64), center, ends, curved)
    middle = len(members) // 2
    return np.array(_describe(curve, *ends, float(np.partition(run_width, middle)[middle]), width))


def _join(runs: Runs, pieces: Floats, groups: list[Integers], width: int) -> tuple[Floats, list[Integers]]:
    """Join the pieces of each line: the pair that fits best first, until no pair fits. Joined pieces come last.

    pieces: (_ROWS, P). groups: by piece, the indices of its runs. Returns both for the joined pieces.
    """
    count = pieces.shape[1]
    if count < 2:
        return pieces, groups
    # Room for the given pieces and for those that joining makes, at most count - 1. The rows and columns of pieces that
    # do not exist yet, or have been joined to others, hold infinite misfits.
    table = np.empty((_ROWS, 2 * count - 1))
    table[:, :count] = pieces
    misfit = np.full((2 * count - 1, 2 * count - 1), np.inf)
    misfit[:count, :count] = _misfits(pieces[:, :, None], pieces[:, None, :], width)
    np.fill_diagonal(misfit, np.inf)
    remaining = list(range(count))
    while len(remaining) > 1:
        lower, upper = best = divmod(int(misfit.argmin()), len(misfit))
        if misfit[lower, upper] > 1.0:
            break
        new = len(groups)
        groups.append(np.concatenate([groups[index] for index in best]))
        (first, other_first), (last, other_last) = table[_FIRST_ROW : _LAST_ROW + 1, [lower, upper]].tolist()
        ends = min(first, other_first), max(last, other_last)
        table[:, new] = _fit_joined(runs, groups[new], ends, width)
        for index in best:
            misfit[index] = misfit[:, index] = np.inf
            remaining.remove(index)
        pairs = np.array([remaining, [new] * len(remaining)], np.intp)
        both = table.take(pairs, axis=1)
        misfit[pairs, pairs[::-1]] = _misfits(both, both[:, ::-1], width)
        remaining.append(new)
    return table[:, remaining], [groups[index] for index in remaining]


def _misfits(lower: Floats, upper: Floats, width: int) -> Floats:
    """How far two pieces miss each other when they are extended, relative to what is allowed: up to 1 they can be one
    line. Infinite if they are too far apart.

    lower, upper: tables of the lower and of the upper pieces, with shapes (_ROWS, ...) that broadcast against each
    other.
    """
    across = lower[_TOP] - upper[_BOTTOM]  # from the bottom of the upper piece to the top of the lower one
    rows = lower[_FIRST_ROW] - upper[_LAST_ROW]
    gap = np.sqrt(across * across + rows * rows)
    reach = np.minimum(_LONGEST_GAP * width, _LONGEST_GAP_PER_LENGTH * np.maximum(lower[_LENGTH], upper[_LENGTH]))
    deviation = _CURVATURE / width * gap * gap + 2.5 * _NOISE * width  # of a curved line from its tangent, and noise

    def relative_miss(slope: Floats, norm: Floats, direction: Floats) -> Floats:
        allowed = np.minimum(2.5 * direction * gap + deviation, _WIDEST_MISS * width)
        result: Floats = np.abs(across - rows * slope) / (norm * allowed)
        return result

    of_lower = relative_miss(lower[_TOP_SLOPE], lower[_TOP_NORM], lower[_DIRECTION])
    of_upper = relative_miss(upper[_BOTTOM_SLOPE], upper[_BOTTOM_NORM], upper[_DIRECTION])
    # Prefer the nearer of two equally good continuations.
    misfits = np.maximum(of_lower, of_upper) + 0.2 / (_LONGEST_GAP * width) * gap
    result: Floats = np.where((rows >= -1.0) & (gap <= reach), misfits, np.inf)
    return result
