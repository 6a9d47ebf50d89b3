"""Detects lane lines in a map of lane probabilities: finds runs of lane pixels, groups them and joins dashes.

Every row of the mask is split into runs of set pixels; only the longest runs are kept, so that the time does not depend
on how much noise the mask holds. Runs that touch one-to-one from row to row form a chain; a chain ends where lines
merge or split. The longest chains become pieces. Two pieces belong to one line if each, extended along its direction,
meets the end of the other, up to the uncertainty of the direction and some curvature of the line. Pairs that fit each
other best are joined, all at once, in a few rounds.

A piece is described by sums over its runs, from which its curve follows by least squares; the sums of joined pieces are
added. So each step handles all pieces together, in a fixed number of calls of NumPy.

Lengths are shares of the mask's width, with the origin in the middle of the mask: u to the right, v down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Runs that are kept per row of the mask, on average. A road with five lines has two to three.
RUNS_PER_ROW = 4
#: Chains that become pieces, the longest ones.
MAX_PIECES = 32
#: Rounds of joining, in each of which whole rows of dashes are joined. More improve no score on the generated road.
MAX_ROUNDS = 2

_NOISE = 0.8 / 320  # standard deviation of a run's center, perpendicular to the line
_SHORTEST_PIECE = 3.0 / 320
_SHORTEST_LINE = 14.0 / 320
_THICKEST_LINE = 20.0 / 320
_LONGEST_GAP = 0.35
_WIDEST_MISS = 8.0 / 320
_LONGEST_GAP_PER_LENGTH = 8.0  # relative to the length of the longer piece
_CURVATURE = 0.35  # maximum deviation of a line from its tangent: this * gap^2
_MAX_SLOPE = 14.0  # columns per row; flatter lines are not lane lines of the road ahead
_MIN_ROWS_OF_CURVE = 12  # the curvature of lines with fewer rows would be noise
_MIN_ELONGATION = 2.0  # length of a line divided by its thickness; blobs have less


@dataclass(frozen=True)
class Runs:
    """Runs of set pixels of a mask (height, width), row by row, from left to right.

    begin, end: (R,) int64, row * (width + 1) + column of the first pixel, and of the one after the last.
    """

    begin: Integers
    end: Integers
    height: int
    width: int

    @property
    def row(self) -> Integers:
        """(R,) row of each run."""
        return self.begin // (self.width + 1)


class Lines(NamedTuple):
    """Lane lines, the longest first.

    curves: (L, 3) c0, c1, c2 of u = c0 + c1 v + c2 v^2, column and row of the mask. first_row, last_row: (L,) rows
    between which each line lies. of_run: (R,) number of each run's line, from 0; -1: none.
    """

    curves: Floats
    first_row: Integers
    last_row: Integers
    of_run: Integers


def max_runs(height: int) -> int:
    """Maximum number of runs of a mask with this number of rows."""
    return RUNS_PER_ROW * height


def find_runs(mask: npt.NDArray[np.uint8]) -> Runs:
    """The runs of a mask (h, w) of 0 and 1, after closing gaps of one pixel, each of which would end a chain.

    Of more than max_runs(h) runs, those below the length that leaves fewer are dropped.
    """
    height, width = mask.shape
    stride = width + 1
    # A zero before the first row and after each row, so that edges alternate between begin and end of a run.
    padded = np.zeros(1 + height * stride, np.uint8)
    padded[1:].reshape(height, stride)[:, :width] = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    begin, end = edges[0::2], edges[1::2]
    limit = max_runs(height)
    if len(begin) > limit:
        length = end - begin
        longer = len(length) - np.bincount(length).cumsum()  # number of runs that are longer than each length
        kept = length > int((longer <= limit).argmax())
        begin, end = begin[kept], end[kept]
    return Runs(begin, end, height, width)


def group_runs(runs: Runs) -> Lines:
    """Group runs into lane lines. Runs of specks, blobs and horizontal bars belong to no line."""
    none = np.full(len(runs.begin), -1)
    row, center = runs.row, (runs.begin + runs.end - 1) / 2.0
    piece_of, count = _chains(runs, row)
    if not count:
        return _no_lines(none)
    inside = np.flatnonzero(piece_of < count)
    sums, first_row, last_row = _sums(runs, row, center, inside, piece_of[inside], count)
    pieces = _Pieces.of(sums, first_row, last_row, runs.width)
    thin = pieces.thickness <= _THICKEST_LINE
    line_of = np.where(thin, np.arange(count), count)  # `count`: belongs to no line
    pieces, line_of = _join(pieces, line_of, runs.width)

    slope = np.abs(pieces.bottom - pieces.top) / np.maximum(pieces.last_v - pieces.first_v, 1.0 / runs.width)
    is_line = pieces.length >= np.maximum(_SHORTEST_LINE, _MIN_ELONGATION * pieces.thickness)
    is_line &= (slope <= _MAX_SLOPE) & (np.bincount(line_of, minlength=count + 1)[:count] > 0)
    chosen = np.flatnonzero(is_line)
    chosen = chosen[(-pieces.length[chosen]).argsort(kind="stable")]
    if not len(chosen):
        return _no_lines(none)
    number = np.full(count + 1, -1)
    number[chosen] = np.arange(len(chosen))
    of_run = none
    of_run[inside] = number[line_of[piece_of[inside]]]
    rows = np.array([pieces.first_v[chosen], pieces.last_v[chosen]]) * runs.width + (runs.height - 1) / 2.0
    first_row, last_row = rows.round().astype(np.int64)
    return Lines(_in_pixels(pieces.curve[:, chosen], runs), first_row, last_row, of_run)


def _no_lines(of_run: Integers) -> Lines:
    none = np.empty(0, np.int64)
    return Lines(np.empty((0, 3)), none, none, of_run)


def _chains(runs: Runs, row: Integers) -> tuple[Integers, int]:
    """Chains of runs that touch one-to-one in adjacent rows (8-connected), at most the MAX_PIECES longest.

    Returns the number (R,) of each run's chain, and the number of chains, which also stands for runs of no chain.
    Chains that are certainly too short for a piece are left out.
    """
    begin, end, stride, count = runs.begin, runs.end, runs.width + 1, len(runs.begin)
    # Run i touches the runs first[i] to last[i] - 1 of the row above.
    first, last = end.searchsorted(begin - stride), begin.searchsorted(end - stride, "right")
    below = (np.bincount(first, minlength=count + 1) - np.bincount(last, minlength=count + 1)).cumsum()
    own = np.arange(count)
    head = np.where((last - first == 1) & (below.take(first) == 1), first, own)  # the run above, at first
    for _ in range(runs.height.bit_length()):  # then the first of the chain, by pointer doubling
        head = head.take(head)
    rows_of = np.bincount(head, minlength=count)
    tail = np.zeros(count, np.int64)
    tail[head] = own  # the last run of each chain is assigned last
    heads = np.flatnonzero(rows_of)
    tails = tail[heads]
    across = (begin + end)[tails] - (begin + end)[heads] - 2 * stride * (row[tails] - row[heads])
    length = rows_of[heads] + np.abs(across) / 2.0
    longest = np.flatnonzero(length >= _SHORTEST_PIECE / 2.0 * runs.width)
    if len(longest) > MAX_PIECES:
        longest = longest[np.argpartition(-length[longest], MAX_PIECES)[:MAX_PIECES]]
    number = np.full(count, len(longest))
    number[heads[longest]] = np.arange(len(longest))
    return number.take(head), len(longest)


#: Rows of the sums of pieces: over their runs 1, v, v^2, v^3, v^4, u, u v, u v^2 and log(length). The geometric mean
#: of the lengths is the thickness, because a few long runs, where something touches the line, must not count much.
_SUMS = 9


def _sums(
    runs: Runs, row: Integers, center: Floats, inside: Integers, piece_of: Integers, count: int
) -> tuple[Floats, Floats, Floats]:
    """(_SUMS, P) sums over the runs `inside`, whose pieces are `piece_of`, and (P,) v of the first and last row."""
    v = (row[inside] - (runs.height - 1) / 2.0) / runs.width
    u = (center[inside] - row[inside] * (runs.width + 1) - (runs.width - 1) / 2.0) / runs.width
    terms = np.empty((_SUMS, len(inside)))
    terms[0] = 1.0
    for power in range(1, 5):
        np.multiply(terms[power - 1], v, out=terms[power])
    np.multiply(terms[:3], u, out=terms[5:8])
    terms[8] = np.log((runs.end - runs.begin)[inside] / runs.width)
    order = piece_of.astype(np.uint8).argsort(kind="stable")
    counts = np.bincount(piece_of, minlength=count)
    begins = counts.cumsum() - counts
    sums = np.add.reduceat(terms.take(order, axis=1), begins, axis=1)
    return sums, v[order[begins]], v[order[begins + counts - 1]]


class _Pieces(NamedTuple):
    """P pieces with the curves that follow from their sums.

    curve: (3, P). top, bottom: u at the first and last row; the slopes are du/dv there, and the norms
    sqrt(1 + slope^2). length along the piece, thickness across it. direction: standard error, per length along it.
    """

    sums: Floats
    first_v: Floats
    last_v: Floats
    curve: Floats
    top: Floats
    bottom: Floats
    slopes: Floats
    norms: Floats
    length: Floats
    thickness: Floats
    direction: Floats

    @classmethod
    def of(cls, sums: Floats, first_v: Floats, last_v: Floats, width: int) -> _Pieces:
        """The pieces with these sums. width: of the mask, in pixels."""
        rows = (last_v - first_v) * width + 1.0
        c0, c1, c2 = curve = _fit(sums, rows >= _MIN_ROWS_OF_CURVE, width)
        ends = np.array([first_v, last_v])
        top, bottom = c0 + ends * (c1 + ends * c2)
        slopes = c1 + 2.0 * c2 * ends
        slope = (bottom - top) * width / np.maximum(rows - 1.0, 1.0)
        stretch = np.sqrt(1.0 + slope * slope)
        length = rows * stretch / width
        # The standard error for n points, evenly spaced over a length l, is noise * sqrt(12 / n) / l. There is about
        # one run per pixel, so l stands for n.
        direction = _NOISE * (12.0 / width) ** 0.5 / (length * np.sqrt(length))
        norms = np.sqrt(1.0 + slopes * slopes)
        thickness = np.exp(sums[8] / sums[0]) / stretch
        return cls(sums, first_v, last_v, curve, top, bottom, slopes, norms, length, thickness, direction)


def _fit(sums: Floats, curved: npt.NDArray[np.bool_], width: int) -> Floats:
    """(3, P) least-squares curves u = c0 + c1 v + c2 v^2 from the sums; c2 is 0 unless `curved`."""
    s0, s1, s2, s3, s4, r0, r1, r2 = sums[:8]
    smallest = 1e-2 / width**2 * s0  # keeps the slope of a single run finite
    # Factorization L D L^T of the normal matrix.
    l10, l20 = s1 / s0, s2 / s0
    d1 = s2 - l10 * s1 + smallest
    off = s3 - l10 * s2
    l21 = off / d1
    d2 = s4 - l20 * s2 - l21 * off + smallest / width**2
    y1 = r1 - l10 * r0
    c2 = curved * (r2 - l20 * r0 - l21 * y1) / d2
    c1 = y1 / d1 - l21 * c2
    return np.array([r0 / s0 - l10 * c1 - l20 * c2, c1, c2])


def _in_pixels(curve: Floats, runs: Runs) -> Floats:
    """(3, L) curves in shares of the width from the middle -> (L, 3) in pixels."""
    c0, c1, c2 = curve
    v = (runs.height - 1) / 2.0
    c2 = c2 / runs.width
    return np.array([c0 * runs.width + (runs.width - 1) / 2.0 - c1 * v + c2 * v * v, c1 - 2.0 * c2 * v, c2]).T


def _join(pieces: _Pieces, line_of: Integers, width: int) -> tuple[_Pieces, Integers]:
    """Join the pieces that belong to one line, those that fit each other best first.

    line_of: (P,) number of each piece, P: belongs to no line. Returns the lines, and the number of each piece's line.
    """
    count = len(line_of)
    own = np.arange(count)
    for _ in range(MAX_ROUNDS):
        exists = np.zeros(count + 1, bool)
        exists[line_of] = True
        misfit = _misfits(pieces, width)
        misfit[~(exists[:count, None] & exists[:count])] = np.inf
        upper, lower = misfit.argmin(axis=1), misfit.argmin(axis=0)
        joined = (misfit[own, upper] <= 1.0) & (lower[upper] == own)
        if not joined.any():
            break
        head = np.where(joined, upper, own)
        for _ in range(count.bit_length()):
            head = head.take(head)
        line_of = np.append(head, count).take(line_of)
        member = (head == own[:, None]) & exists[:count]  # (line, piece)
        sums = pieces.sums @ member.T
        sums += ~member.any(axis=1)  # no division by zero for those that are gone
        first_v = np.where(member, pieces.first_v, np.inf).min(axis=1)
        last_v = np.where(member, pieces.last_v, -np.inf).max(axis=1)
        gone = np.isinf(first_v)
        first_v[gone] = last_v[gone] = 0.0
        pieces = _Pieces.of(sums, first_v, last_v, width)
    return pieces, line_of


def _misfits(pieces: _Pieces, width: int) -> Floats:
    """(lower piece, upper piece): how far they miss each other when they are extended, relative to what is allowed: up
    to 1 they can be one line. Infinite if they are too far apart, or the first is not below the second.
    """
    across = pieces.top[:, None] - pieces.bottom  # from the bottom of the upper piece to the top of the lower one
    rows = pieces.first_v[:, None] - pieces.last_v
    gap = np.sqrt(across * across + rows * rows)
    longer = np.maximum(pieces.length[:, None], pieces.length)
    reach = np.minimum(_LONGEST_GAP, _LONGEST_GAP_PER_LENGTH * longer)
    deviation = _CURVATURE * gap * gap + 2.5 * _NOISE  # of a curved line from its tangent, and noise

    def relative_miss(slope: Floats, norm: Floats, direction: Floats) -> Floats:
        allowed = np.minimum(2.5 * direction * gap + deviation, _WIDEST_MISS)
        result: Floats = np.abs(across - rows * slope) / (norm * allowed)
        return result

    of_lower = relative_miss(pieces.slopes[0][:, None], pieces.norms[0][:, None], pieces.direction[:, None])
    of_upper = relative_miss(pieces.slopes[1], pieces.norms[1], pieces.direction)
    # Prefer the nearer of two equally good continuations.
    misfits = np.maximum(of_lower, of_upper) + 0.2 / _LONGEST_GAP * gap
    misfits[(rows < -1.0 / width) | (gap > reach)] = np.inf
    return misfits
