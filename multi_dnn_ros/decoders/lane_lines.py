"""Detects lane lines in a map of lane probabilities: finds runs of lane pixels, groups them and joins dashes.

Every row of the mask is split into runs of set pixels. Runs that touch one-to-one from row to row form a chain; a chain
ends where lines merge or split. The longest chains become pieces. Two pieces belong to one line if each, extended along
its direction, meets the end of the other, up to the uncertainty of the direction and some curvature of the line. Pairs
that fit each other best are joined, all at once, in a few rounds.

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

#: Runs that are kept per row of a noisy mask on average, the longest ones. A road with five lines has two to three.
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

    curves: (L, 3) c0, c1, c2 of u = c0 + c1 v + c2 v^2 in source pixels. first_row, last_row: (L,) rows of the mask
    between which each line lies. of_run: (R,) number of each run's line, from 0; -1: none.
    """

    curves: Floats
    first_row: Integers
    last_row: Integers
    of_run: Integers


def find_runs(mask: npt.NDArray[np.uint8]) -> Runs:
    """The runs of a mask (h, w) of 0 and 1, after closing gaps of one pixel, each of which would end a chain."""
    height, width = mask.shape
    stride = width + 1
    # A zero before the first row and after each row, so that edges alternate between begin and end of a run.
    padded = np.zeros(1 + height * stride, np.uint8)
    padded[1:].reshape(height, stride)[:, :width] = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    begin, end = edges[0::2], edges[1::2]
    if len(begin) > RUNS_PER_ROW * height:
        longer = len(begin) - np.bincount(end - begin).cumsum()  # number of runs that are longer than each length
        kept = end - begin > int((longer <= RUNS_PER_ROW * height).argmax())
        begin, end = begin[kept], end[kept]
    return Runs(begin, end, height, width)


def group_runs(runs: Runs, source_size: tuple[int, int]) -> Lines:
    """Group runs into lane lines. Runs of specks, blobs and horizontal bars belong to no line. source_size: (H, W) of
    the image that the mask shows.
    """
    piece_of, count = _chains(runs)
    pieces = _Pieces.of(*_sums(runs, piece_of, count), runs.width)
    thin = np.flatnonzero(pieces.thickness <= _THICKEST_LINE)
    pieces = _Pieces.of(pieces.sums[:, thin], pieces.first_v[thin], pieces.last_v[thin], runs.width)
    pieces, line_of = _join(pieces, runs.width)
    slope = np.abs(pieces.bottom - pieces.top) / np.maximum(pieces.last_v - pieces.first_v, 1.0 / runs.width)
    is_line = pieces.length >= np.maximum(_SHORTEST_LINE, _MIN_ELONGATION * pieces.thickness)
    chosen = np.flatnonzero(is_line & (slope <= _MAX_SLOPE))
    chosen = chosen[(-pieces.length[chosen]).argsort(kind="stable")]
    number = np.full(len(is_line), -1)
    number[chosen] = np.arange(len(chosen))
    number_of_piece = np.full(count + 1, -1)
    number_of_piece[thin] = number[line_of]
    rows = np.array([pieces.first_v[chosen], pieces.last_v[chosen]]) * runs.width + (runs.height - 1) / 2.0
    first_row, last_row = rows.round().astype(np.int64)
    return Lines(_in_source(pieces.curve[:, chosen], runs, source_size), first_row, last_row, number_of_piece[piece_of])


def _chains(runs: Runs) -> tuple[Integers, int]:
    """Chains of runs that touch one-to-one in adjacent rows (8-connected), at most the MAX_PIECES longest.

    Returns the number (R,) of each run's chain, and the number of chains, which also stands for runs of no chain.
    Chains that are certainly too short for a piece are left out.
    """
    begin, end, row, stride, count = runs.begin, runs.end, runs.row, runs.width + 1, len(runs.begin)
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


def _sums(runs: Runs, piece_of: Integers, count: int) -> tuple[Floats, Floats, Floats]:
    """(9, P) sums over the runs of each piece, and (P,) v of its first and last row. piece_of: (R,), P: none."""
    inside = np.flatnonzero(piece_of < count)
    piece, row = piece_of[inside], runs.row[inside]
    v = (row - (runs.height - 1) / 2.0) / runs.width
    center = (runs.begin + runs.end - 1)[inside] / 2.0 - row * (runs.width + 1)
    u = (center - (runs.width - 1) / 2.0) / runs.width
    v2 = v * v
    terms = [
        np.ones_like(v),
        v,
        v2,
        v2 * v,
        v2 * v2,
        u,
        u * v,
        u * v2,
        np.log((runs.end - runs.begin)[inside] / runs.width),
    ]
    sums = np.array([np.bincount(piece, term, count) for term in terms], np.float64)
    first_v, last_v = np.zeros(count), np.zeros(count)
    first_v[piece[::-1]], last_v[piece] = v[::-1], v  # the value that is assigned last remains
    return sums, first_v, last_v


class _Pieces(NamedTuple):
    """P pieces with the curves that follow from their sums.

    sums: (9, P) over the runs of 1, v, v^2, v^3, v^4, u, u v, u v^2 and log(length). curve: (3, P). top, bottom: u at
    the first and last row; the slopes are du/dv there, and the norms sqrt(1 + slope^2). length along the piece,
    thickness across it: the geometric mean of the runs' lengths, as a few long runs, where something touches the line,
    must not count much. direction: standard error, per length along it.
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
    moments = sums[[0, 1, 2, 1, 2, 3, 2, 3, 4]].T.reshape(-1, 3, 3).copy()
    smallest = 1e-2 / width**2 * sums[0]  # keeps the slope of a single run finite
    moments[:, 1, 1] += smallest
    moments[:, 2, 2] += smallest / width**2
    moments[~curved, 2, :2] = moments[~curved, :2, 2] = 0.0
    values = sums[5:8].copy()
    values[2, ~curved] = 0.0
    return np.asarray(np.linalg.solve(moments, values.T[..., None])[..., 0].T, np.float64)


def _in_source(curve: Floats, runs: Runs, source_size: tuple[int, int]) -> Floats:
    """(3, L) curves in shares of the mask's width from the middle -> (L, 3) in pixels of a source image of (H, W)."""
    height, width = source_size
    c0, c1, c2 = curve
    scale = runs.height / (height * runs.width)  # v in shares = scale * (v of the source + 1/2 - H/2)
    shift = scale * (1 - height) / 2.0
    at_origin, slope = c0 + shift * (c1 + shift * c2), c1 + 2.0 * shift * c2
    return np.array([width * at_origin + (width - 1) / 2.0, width * scale * slope, width * scale**2 * c2]).T.copy()


def _join(pieces: _Pieces, width: int) -> tuple[_Pieces, Integers]:
    """Join the pieces that belong to one line, those that fit each other best first.

    Returns the lines, and the number (P,) of each piece's line.
    """
    line_of = own = np.arange(len(pieces.first_v))
    for _ in range(MAX_ROUNDS if len(own) else 0):
        misfit = _misfits(pieces, width)
        upper, lower = misfit.argmin(axis=1), misfit.argmin(axis=0)
        joined = (misfit[own, upper] <= 1.0) & (lower[upper] == own)
        if not joined.any():
            break
        head = np.where(joined, upper, own)
        for _ in range(len(own).bit_length()):
            head = head.take(head)
        heads, line = np.unique(head, return_inverse=True)
        sums = np.array([np.bincount(line, each, len(heads)) for each in pieces.sums], np.float64)
        first_v, last_v = np.full(len(heads), np.inf), np.full(len(heads), -np.inf)
        np.minimum.at(first_v, line, pieces.first_v)
        np.maximum.at(last_v, line, pieces.last_v)
        pieces, line_of, own = _Pieces.of(sums, first_v, last_v, width), line[line_of], np.arange(len(heads))
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
