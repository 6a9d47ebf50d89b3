"""Detects lane lines in a binary mask: groups its pixels into lines and joins the dashes of a line.

Every row of the mask is split into runs of set pixels. Runs that touch one-to-one from row to row form a chain; a chain
ends where lines merge or split. A piece is a chain with a curve fitted to it. Two pieces belong to one line if each,
extended along its direction, meets the end of the other, up to the uncertainty of the direction and some curvature of
the line. The direction of a longer piece is more certain. The pair that fits best is joined first, and the joined piece
is compared with the remaining ones.

Coordinates are pixels of the mask: u is the column, v the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Only this many pieces, the longest ones, are considered; all pairs are then compared in less than a millisecond.
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
_REWEIGHTED = 3  # iterations of a robust fit


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
    padded = np.zeros((height, width + 2), np.bool_)
    padded[:, 1:-1] = mask
    # The first and the last column are padding, so that edges alternate between begin and end of a run.
    edges = np.flatnonzero(padded[:, 1:] != padded[:, :-1])
    row, begin = np.divmod(edges[0::2], width + 1)
    return Runs(row, begin, edges[1::2] - row * (width + 1))


@dataclass(frozen=True)
class Line:
    """One lane line. members: (K,) indices of its runs. curve: (3,) c0, c1, c2 of u = c0 + c1 v + c2 v^2."""

    members: Integers
    curve: Floats


def group_runs(runs: Runs, width: int) -> list[Line]:
    """Group the runs of a mask of `width` columns into lane lines, longest line first.

    Runs of specks, blobs and horizontal bars belong to no line.
    """
    pieces = _join(runs, _fit(runs, _chains(runs, width), width), width)
    lines = [piece for piece in pieces if piece.length >= _SHORTEST_LINE * width and _is_line(piece)]
    return [Line(line.members, line.curve) for line in sorted(lines, key=lambda line: -line.length)]


def fit_curves(v: Floats, u: Floats, counts: Integers, curved: npt.NDArray[np.bool_]) -> Floats:
    """Robust fits of u = c0 + c1 v + c2 v^2 by iteratively reweighted least squares with Huber weights.

    v, u: (K,) coordinates, curve after curve. counts: (P,) number of points of each curve, at least 1. curved: (P,)
    where it is false, c2 is 0. Returns (P, 3) c0, c1, c2.

    All curves are fitted together: one after another, the overhead of the numpy calls, which hold the GIL, would be ten
    times the computation.
    """
    if len(counts) == 1:  # _fit_one takes less than a third of the time
        return _fit_one(v, u, bool(curved[0]))[None]
    begins = np.cumsum(counts) - counts
    curve_of = np.repeat(np.arange(len(counts)), counts)  # curve of each point
    origin = np.add.reduceat(v, begins) / counts
    span = np.maximum(np.maximum.reduceat(v, begins) - np.minimum.reduceat(v, begins), 1.0)
    t = (v - origin[curve_of]) / span[curve_of]
    terms = _terms(t, u)
    sums = np.add.reduceat(terms, begins, axis=1)
    solution = _solve(sums, 1e-9 * counts, curved)
    for _ in range(_REWEIGHTED):
        c0, c1, c2 = solution[:, curve_of]
        residuals = np.abs(u - (c0 + c1 * t + c2 * terms[2]))
        scale = np.maximum(1.4826 * _medians(residuals, curve_of, begins + counts // 2), 0.25)
        weights = np.minimum(1.0, 1.5 * scale[curve_of] / np.maximum(residuals, 1e-12))
        solution = _solve(np.add.reduceat(terms * weights, begins, axis=1), 1e-9 * counts, curved)
    a, b, c = solution[0], solution[1] / span, solution[2] / span**2
    return np.stack([a - b * origin + c * origin**2, b - 2 * c * origin, c], axis=1)


def _fit_one(v: Floats, u: Floats, curved: bool) -> Floats:
    """As fit_curves, for the points (K,) of one curve. Returns (3,) c0, c1, c2."""
    count = len(v)
    origin = float(v.sum()) / count
    span = max(float(v.max()) - float(v.min()), 1.0)
    terms = _terms((v - origin) / span, u)
    solution = _solve(terms.sum(axis=1).tolist(), 1e-9 * count, curved)
    for _ in range(_REWEIGHTED):
        residuals = np.abs(u - np.array(solution) @ terms[:3])
        ordered = residuals.copy()
        ordered.partition(count // 2)
        scale = max(1.4826 * float(ordered[count // 2]), 0.25)
        weights = np.minimum(1.0, 1.5 * scale / np.maximum(residuals, 1e-12))
        solution = _solve((terms @ weights).tolist(), 1e-9 * count, curved)
    a, b, c = solution[0], solution[1] / span, solution[2] / span**2
    return np.array([a - b * origin + c * origin**2, b - 2 * c * origin, c])


def _terms(t: Floats, u: Floats) -> Floats:
    """(8, K) 1, t, t^2, t^3, t^4, u, u t, u t^2 of each point; _solve takes their sums over the points of a curve."""
    square = t * t
    return np.array([np.ones_like(t), t, square, square * t, square * square, u, u * t, u * square])


def _solve(sums: Any, ridge: Any, curved: Any) -> Any:
    """Least squares: c0, c1, c2 from the sums of the terms of _terms; c2 is 0 unless `curved`.

    For one curve, all values are floats, and the result is a tuple of three floats: numpy.linalg.solve would take
    longer. For P curves, they are arrays (P,), and the result is an array (3, P). ridge: added to the diagonal of the
    normal matrix, which makes it positive definite.
    """
    s0, s1, s2, s3, s4, r0, r1, r2 = sums
    # Factorization L D L^T of the normal matrix.
    d0 = s0 + ridge
    l10, l20 = s1 / d0, s2 / d0
    d1 = s2 + ridge - l10 * s1
    off = s3 - l10 * s2
    l21 = off / d1
    d2 = s4 + ridge - l20 * s2 - l21 * off
    y1 = r1 - l10 * r0
    c2 = curved * (r2 - l20 * r0 - l21 * y1) / d2
    c1 = y1 / d1 - l21 * c2
    c0 = r0 / d0 - l10 * c1 - l20 * c2
    return (c0, c1, c2) if isinstance(c0, float) else np.array([c0, c1, c2])


def _medians(values: npt.NDArray[Any], group_of: Integers, middles: Integers) -> Floats:
    """(P,) upper median of each of P groups of nonnegative values.

    group_of: (K,) group of each value, ascending. middles: (P,) position of the upper median of each group when its
    values are sorted, counted from the first value of the first group.
    """
    # One sort of values that are shifted by group is several times faster than a sort by two keys. The shift costs less
    # than 1e-10 in accuracy for MAX_CHAINS groups of values up to 640.
    steps = group_of * (float(values.max()) + 1.0)
    result: Floats = np.sort(values + steps)[middles] - steps[middles]
    return result


def _chains(runs: Runs, width: int) -> list[Integers]:
    """Chains of runs that touch one-to-one in adjacent rows (8-connected), at most the MAX_CHAINS longest.

    Each is (K,) indices of its runs, from the upper end down.
    """
    count = len(runs.row)
    if not count:
        return []
    stride = width + 4
    begins = runs.row * stride + runs.begin
    ends = runs.row * stride + runs.end  # ascending like begins: the runs of a row do not overlap
    first_above = np.searchsorted(ends, begins - stride, "left")
    above = np.searchsorted(begins, ends - stride, "right") - first_above
    below = np.searchsorted(begins, ends + stride, "right") - np.searchsorted(ends, begins + stride, "left")
    follows = (above == 1) & (below[np.minimum(first_above, count - 1)] == 1)
    chain = np.where(follows, first_above, np.arange(count))
    while (further := chain[chain]).tobytes() != chain.tobytes():  # pointer doubling
        chain = further
    order = np.argsort(chain, kind="stable")
    sorted_chain = chain[order]
    borders = np.flatnonzero(sorted_chain[1:] != sorted_chain[:-1]) + 1
    begins, ends = np.concatenate([[0], borders]), np.concatenate([borders, [count]])
    chosen = np.arange(len(ends))
    if len(ends) > MAX_CHAINS:
        first, last, center = order[begins], order[ends - 1], runs.center
        length = np.hypot(center[last] - center[first], runs.row[last] - runs.row[first])
        chosen = np.sort(np.argsort(-length, kind="stable")[:MAX_CHAINS])
    return [order[begin:end] for begin, end in zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True)]


class _Piece(NamedTuple):
    """Part of a line. members, curve: see Line. length: along the line; thickness: perpendicular to it; in pixels."""

    members: Integers
    curve: Floats
    top: tuple[float, float, float]  # u, v and slope du/dv at the upper end
    bottom: tuple[float, float, float]  # the same at the lower end
    length: float
    thickness: float


def _fit(runs: Runs, chains: list[Integers], width: int) -> list[_Piece]:
    """The pieces of chains of runs, the longest first, at most MAX_PIECES. Short and thick ones are left out."""
    if not chains:
        return []
    members = np.concatenate(chains)
    counts = np.array([len(chain) for chain in chains])
    begins = np.cumsum(counts) - counts
    v = runs.row[members].astype(np.float64)
    begin, end = runs.begin[members], runs.end[members]
    high, low = np.minimum.reduceat(v, begins), np.maximum.reduceat(v, begins)
    rows = low - high + 1.0
    curves = fit_curves(v, (begin + end - 1) / 2.0, counts, (rows >= _MIN_ROWS_OF_CURVE) & (counts > 2))
    c0, c1, c2 = curves.T
    top_u, bottom_u = (c0 + c1 * y + c2 * y * y for y in (high, low))
    # Computed from the curve, not from the runs in the end rows, which are cut short at the end of a shallow line.
    stretch = np.hypot(1.0, (bottom_u - top_u) / np.maximum(rows - 1.0, 1.0))
    length = rows * stretch
    chain_of = np.repeat(np.arange(len(chains)), counts)
    thickness = _medians(end - begin, chain_of, begins + counts // 2) / stretch
    chosen = np.flatnonzero((length >= _SHORTEST_PIECE * width) & (thickness <= _THICKEST_LINE * width))
    chosen = chosen[np.argsort(-length[chosen], kind="stable")[:MAX_PIECES]]
    top_slope, bottom_slope = (c1 + 2 * c2 * y for y in (high, low))
    ends = np.array([top_u, high, top_slope, bottom_u, low, bottom_slope, length, thickness]).T[chosen]
    return [
        _Piece(chains[index], curves[index], end[:3], end[3:6], *end[6:])
        for index, end in zip(chosen.tolist(), map(tuple, ends.tolist()), strict=True)
    ]


def _fit_joined(runs: Runs, members: Integers) -> _Piece:
    """The piece of these runs, of any length and thickness; computed as in _fit."""
    v = runs.row[members].astype(np.float64)
    begin, end = runs.begin[members], runs.end[members]
    high, low = float(v.min()), float(v.max())
    rows = low - high + 1.0
    curve = _fit_one(v, (begin + end - 1) / 2.0, rows >= _MIN_ROWS_OF_CURVE and len(members) > 2)
    c0, c1, c2 = curve.tolist()
    top, bottom = ((c0 + c1 * y + c2 * y * y, y, c1 + 2 * c2 * y) for y in (high, low))
    stretch = math.hypot(1.0, (bottom[0] - top[0]) / max(rows - 1.0, 1.0))
    thickness = float(np.sort(end - begin)[len(members) // 2]) / stretch
    return _Piece(members, curve, top, bottom, rows * stretch, thickness)


def _join(runs: Runs, pieces: list[_Piece], width: int) -> list[_Piece]:
    """Join the pieces of each line: the pair that fits best first, until no pair fits. Joined pieces come last."""
    count = len(pieces)
    if count < 2:
        return pieces
    pieces = list(pieces)
    # Room for the given pieces and for those that joining makes, at most count - 1. The rows and columns of pieces that
    # do not exist yet, or have been joined to others, hold infinite misfits.
    ends = np.empty((10, 2 * count - 1))
    ends[:, :count] = _ends(pieces, width)
    misfit = np.full((2 * count - 1, 2 * count - 1), np.inf)
    near = np.nonzero(_within_reach(ends[:, :count, None], ends[:, None, :count], width))
    misfit[near] = _misfits(ends[:, near[0]], ends[:, near[1]], width)
    np.fill_diagonal(misfit, np.inf)
    remaining = list(range(count))
    while len(remaining) > 1:
        best = divmod(int(misfit.argmin()), len(misfit))
        if misfit[best] > 1.0:
            break
        new = len(pieces)
        pieces.append(_fit_joined(runs, np.concatenate([pieces[index].members for index in best])))
        ends[:, new : new + 1] = _ends(pieces[new:], width)
        for index in best:
            misfit[index] = misfit[:, index] = np.inf
            remaining.remove(index)
        lower, upper = [new] * len(remaining) + remaining, remaining + [new] * len(remaining)
        of_lower, of_upper = ends[:, lower], ends[:, upper]
        within = _within_reach(of_lower, of_upper, width)
        misfit[lower, upper] = np.where(within, _misfits(of_lower, of_upper, width), np.inf)
        remaining.append(new)
    return [pieces[index] for index in remaining]


def _is_line(piece: _Piece) -> bool:
    """Whether the piece is neither a blob nor too flat for a lane line."""
    slope = (piece.bottom[0] - piece.top[0]) / max(piece.bottom[1] - piece.top[1], 1.0)
    return piece.length >= _MIN_ELONGATION * piece.thickness and abs(slope) <= _MAX_SLOPE


def _ends(pieces: Sequence[_Piece], width: int) -> Floats:
    """(10, P): what _misfits needs to know of P pieces.

    Rows 0 to 3: u, v, slope, sqrt(1 + slope^2) at the top. Rows 4 to 7: the same at the bottom. Row 8: length. Row 9:
    standard error of the direction, in pixels across the line per pixel along it.
    """
    ends = np.array([(*piece.top, 0.0, *piece.bottom, 0.0, piece.length, 0.0) for piece in pieces]).T
    ends[3], ends[7] = np.hypot(1.0, ends[2]), np.hypot(1.0, ends[6])
    # The standard error for n points, evenly spaced over a length l, is noise * sqrt(12 / n) / l. There is about one
    # run per pixel, so l stands for n.
    ends[9] = _NOISE * width * np.sqrt(12.0 / ends[8]) / ends[8]
    return ends


def _within_reach(lower: Floats, upper: Floats, width: int) -> npt.NDArray[np.bool_]:
    """Whether the distance between two pieces is short enough to join them. lower, upper: see _misfits."""
    across, rows = lower[0] - upper[4], lower[1] - upper[5]
    reach = np.minimum(_LONGEST_GAP * width, _LONGEST_GAP_PER_LENGTH * np.maximum(lower[8], upper[8]))
    result: npt.NDArray[np.bool_] = (rows >= -1.0) & (across * across + rows * rows <= reach * reach)
    return result


def _misfits(lower: Floats, upper: Floats, width: int) -> Floats:
    """How far two pieces miss each other when they are extended, relative to what is allowed: up to 1 they can be one
    line.

    lower, upper: results of _ends for the lower and for the upper pieces, with shapes (10, ...) that broadcast against
    each other.
    """
    across = lower[0] - upper[4]  # from the bottom of the upper piece to the top of the lower one
    rows = lower[1] - upper[5]
    gap = np.sqrt(across * across + rows * rows)
    deviation = _CURVATURE * gap * gap / width  # of a curved line from its tangent

    def relative_miss(slope: Floats, norm: Floats, direction: Floats) -> Floats:
        allowed = np.minimum(2.5 * (_NOISE * width + gap * direction) + deviation, _WIDEST_MISS * width)
        result: Floats = np.abs(across - rows * slope) / (norm * allowed)
        return result

    of_lower = relative_miss(lower[2], lower[3], lower[9])
    of_upper = relative_miss(upper[6], upper[7], upper[9])
    # Prefer the nearer of two equally good continuations.
    result: Floats = np.maximum(of_lower, of_upper) + 0.2 * gap / (_LONGEST_GAP * width)
    return result
