"""Detects lane lines in a binary mask: groups its pixels into lines and joins the dashes of a line.

Every row of the mask is split into runs of set pixels. Runs that touch one-to-one from row to row form a piece; a piece
ends where lines merge or split. Two pieces belong to one line if each, extended along its direction, meets the end of
the other within the uncertainty of that direction, which decreases with its length. The best pair is joined first. The
joined piece is longer, so its direction is more certain, and it is compared with the rest again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

#: Only this many pieces, the longest ones, are considered; comparing all pairs then takes less than a millisecond.
MAX_PIECES = 48
#: Only this many chains of runs, the longest ones, become pieces; noise yields thousands of chains.
MAX_CHAINS = 256
# The lengths below are relative to the mask's width.
_NOISE = 0.6 / 320  # position noise of a run's center, perpendicular to the line
_SHORTEST_PIECE = 3.0 / 320
_SHORTEST_LINE = 14.0 / 320
_THICKEST_LINE = 20.0 / 320
_LONGEST_GAP = 0.35
_WIDEST_MISS = 6.0 / 320
_LONGEST_GAP_PER_LENGTH = 8.0
_MAX_SLOPE = 14.0  # columns per row; flatter lines are not lane lines of the road ahead
_NO_BEND = (0.0, 0.0, 1.0)  # row and column of the normal equations for c2 = 0
_NORMAL = np.array([0, 1, 2, 1, 2, 3, 2, 3, 4])  # sums of the powers of t, 0 to 4, as the 3 x 3 normal equations
_CURVATURE = 0.35  # maximum deviation of a line from its tangent: this * gap^2 / mask width


@dataclass(frozen=True)
class Runs:
    """Runs of set pixels: row, first column and one past the last column of each; row by row, left to right."""

    row: Integers
    begin: Integers
    end: Integers

    @property
    def center(self) -> Floats:
        return (self.begin + self.end - 1) / 2.0


def find_runs(mask: npt.NDArray[np.uint8]) -> Runs:
    """The runs of a mask (h, w) of 0 and 1."""
    height, width = mask.shape
    padded = np.zeros((height, width + 2), np.bool_)
    padded[:, 1:-1] = mask
    # Rows begin and end unset, so the edges alternate between begin and end of a run.
    edges = np.flatnonzero(padded[:, 1:] != padded[:, :-1])
    row, begin = np.divmod(edges[0::2], width + 1)
    return Runs(row, begin, edges[1::2] - row * (width + 1))


@dataclass(frozen=True)
class Line:
    """Runs of one lane line: members, (K,) indices into the runs; curve, (3,) c0, c1, c2 of u = c0 + c1 v + c2 v^2."""

    members: Integers
    curve: Floats


def group_runs(runs: Runs, width: int) -> list[Line]:
    """Group the runs of a mask of `width` columns into lane lines, longest line first.

    Runs of specks, blobs and horizontal bars belong to no line.
    """
    pieces = _fit(runs, _touching(runs, width))
    pieces = [piece for piece in pieces if piece.length >= _SHORTEST_PIECE * width and _is_thin(piece, width)]
    pieces.sort(key=lambda piece: -piece.length)
    del pieces[MAX_PIECES:]
    while len(pieces) > 1:
        misfit = _misfits(pieces, width)
        lower, upper = np.unravel_index(int(misfit.argmin()), misfit.shape)
        if misfit[lower, upper] > 1.0:
            break
        joined = _fit(runs, [np.concatenate([pieces[lower].members, pieces[upper].members])])
        pieces = [piece for index, piece in enumerate(pieces) if index not in (lower, upper)] + joined
    lines = [piece for piece in pieces if piece.length >= _SHORTEST_LINE * width and _is_line(piece)]
    return [Line(line.members, line.curve) for line in sorted(lines, key=lambda line: -line.length)]


def fit_curves(v: Floats, u: Floats, counts: Integers, bend: npt.NDArray[np.bool_]) -> Floats:
    """Robust fits of u = c0 + c1 v + c2 v^2 (c2 = 0 unless `bend`) by reweighted least squares, Huber weights.

    v, u: (K,) coordinates, curve after curve. counts: (P,) number of points of each curve, at least 1. bend: (P,).
    Returns (P, 3) c0, c1, c2. All curves are fitted at once: one by one, the overhead of the numpy calls, which
    hold the GIL, would be ten times the computation.
    """
    if len(counts) == 1:  # two joined pieces: takes less than a third of the time
        return _fit_one(v, u, bool(bend[0]))
    begins = np.cumsum(counts) - counts
    number = np.repeat(np.arange(len(counts)), counts)
    origin = np.add.reduceat(v, begins) / counts
    span = np.maximum(np.maximum.reduceat(v, begins) - np.minimum.reduceat(v, begins), 1.0)
    t = (v - origin[number]) / span[number]
    square = t * t
    terms = np.stack([np.ones_like(t), t, square, square * t, square * square, u, u * t, u * square])
    straight = np.flatnonzero(~bend)
    ridge = (1e-9 * counts)[:, None, None] * np.eye(3)
    solution: Floats = np.zeros((len(counts), 3))
    weighted = terms
    for step in range(4):
        if step:
            c0, c1, c2 = solution.T[:, number]
            residuals = np.abs(u - (c0 + c1 * t + c2 * square))
            scale = np.maximum(1.4826 * _medians(residuals, number, begins + counts // 2), 0.25)
            weighted = terms * np.minimum(1.0, 1.5 * scale[number] / np.maximum(residuals, 1e-12))
        sums = np.add.reduceat(weighted, begins, axis=1).T
        normal, right = sums[:, _NORMAL].reshape(-1, 3, 3) + ridge, sums[:, 5:, None]
        normal[straight, 2], normal[straight, :, 2], right[straight, 2] = _NO_BEND, _NO_BEND, 0.0
        solution = np.asarray(np.linalg.solve(normal, right), np.float64)[:, :, 0]
    a, b, c = solution[:, 0], solution[:, 1] / span, solution[:, 2] / span**2
    return np.stack([a - b * origin + c * origin**2, b - 2 * c * origin, c], axis=1)


def _fit_one(v: Floats, u: Floats, bend: bool) -> Floats:
    """As fit_curves, for one curve. Returns (1, 3)."""
    count = len(v)
    origin = float(v.sum()) / count
    span = max(float(v.max() - v.min()), 1.0)
    t = (v - origin) / span
    powers = np.stack([np.ones_like(t), t, t * t] if bend else [np.ones_like(t), t])
    products = np.concatenate([powers[:, None] * powers, powers[:, None] * u], axis=1)  # (terms, terms + 1, K)
    ridge = 1e-9 * count * np.eye(len(powers))
    weights: Floats = np.ones_like(t)
    solution: Floats = np.zeros(len(powers))
    for step in range(4):
        if step:
            residuals = np.abs(u - solution @ powers)
            scale = max(1.4826 * float(np.partition(residuals, count // 2)[count // 2]), 0.25)
            weights = np.minimum(1.0, 1.5 * scale / np.maximum(residuals, 1e-12))
        sums = products @ weights
        solution = np.asarray(np.linalg.solve(sums[:, :-1] + ridge, sums[:, -1]), np.float64)
    a, b, c = (*solution.tolist(), 0.0)[:3]
    b, c = b / span, c / span**2
    return np.array([[a - b * origin + c * origin**2, b - 2 * c * origin, c]])


def _medians(values: npt.NDArray[Any], number: Integers, middles: Integers) -> Floats:
    """Upper median of each group of nonnegative values. number: group of each value, ascending."""
    # One sort of values shifted by group: several times faster than a sort by two keys, at an error of 1e-12 pixels.
    steps = number * (float(values.max()) + 1.0)
    result: Floats = np.sort(values + steps)[middles] - steps[middles]
    return result


def _touching(runs: Runs, width: int) -> list[Integers]:
    """Chains of runs that touch one-to-one in adjacent rows (8-connected); at most the MAX_CHAINS longest."""
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
    ends = np.append(np.flatnonzero(np.diff(chain[order])), count - 1) + 1
    begins = np.append(0, ends[:-1])
    chosen = np.arange(len(ends))
    if len(ends) > MAX_CHAINS:
        first, last, center = order[begins], order[ends - 1], runs.center
        length = np.hypot(center[last] - center[first], runs.row[last] - runs.row[first])
        chosen = np.sort(np.argsort(-length, kind="stable")[:MAX_CHAINS])
    return [order[begin:end] for begin, end in zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True)]


class _Piece(NamedTuple):
    """Part of a line. Slopes are du/dv; thickness is perpendicular to the line."""

    members: Integers
    curve: Floats
    top: tuple[float, float, float]  # u, v, slope at the upper end
    bottom: tuple[float, float, float]
    length: float
    thickness: float


def _fit(runs: Runs, groups: list[Integers]) -> list[_Piece]:
    """A piece of each group of runs."""
    if not groups:
        return []
    members = np.concatenate(groups)
    counts = np.array([len(group) for group in groups])
    begins = np.cumsum(counts) - counts
    v = runs.row[members].astype(np.float64)
    high, low = np.minimum.reduceat(v, begins), np.maximum.reduceat(v, begins)
    rows = low - high + 1.0
    curves = fit_curves(v, runs.center[members], counts, (rows >= 12) & (counts > 2))
    c0, c1, c2 = curves.T
    top, bottom = (np.stack([c0 + c1 * y + c2 * y * y, y, c1 + 2 * c2 * y], axis=1) for y in (high, low))
    # Computed from the curve, not from the runs in the end rows, which are cut short at the end of a shallow line.
    stretch = np.hypot(1.0, (bottom[:, 0] - top[:, 0]) / np.maximum(rows - 1.0, 1.0))
    number = np.repeat(np.arange(len(groups)), counts)
    widths = _medians((runs.end - runs.begin)[members], number, begins + counts // 2)
    ends = zip(top.tolist(), bottom.tolist(), (rows * stretch).tolist(), (widths / stretch).tolist(), strict=True)
    return [_Piece(group, curve, *end) for group, curve, end in zip(groups, curves, ends, strict=True)]


def _is_thin(piece: _Piece, width: int) -> bool:
    return piece.thickness <= _THICKEST_LINE * width


def _is_line(piece: _Piece) -> bool:
    slope = (piece.bottom[0] - piece.top[0]) / max(piece.bottom[1] - piece.top[1], 1.0)
    return piece.length >= 2.5 * piece.thickness and abs(slope) <= _MAX_SLOPE


def _misfits(pieces: list[_Piece], width: int) -> Floats:
    """[lower, upper]: distance by which two extended pieces miss each other; up to 1 they can be one line."""
    top = np.array([piece.top for piece in pieces]).T[:, :, None]  # of the lower piece
    bottom = np.array([piece.bottom for piece in pieces]).T[:, None, :]  # of the upper piece
    length = np.array([piece.length for piece in pieces])
    across = top[0] - bottom[0]
    rows = top[1] - bottom[1]
    gap = np.hypot(across, rows)
    miss_of_lower = np.abs(across - rows * top[2]) / np.hypot(1.0, top[2])
    miss_of_upper = np.abs(across - rows * bottom[2]) / np.hypot(1.0, bottom[2])
    noise = _NOISE * width
    bend = _CURVATURE * gap * gap / width

    def allowed(known_length: Floats) -> Floats:
        # Standard error of the direction of a line fitted to n points over a length l: noise * sqrt(12 / n) / l.
        direction = noise * np.sqrt(12.0 / known_length) / known_length
        result: Floats = np.minimum(2.5 * (noise + gap * direction) + bend, _WIDEST_MISS * width + 0.0 * gap)
        return result

    misfit: Floats = np.maximum(miss_of_lower / allowed(length[:, None]), miss_of_upper / allowed(length[None, :]))
    longest = np.maximum(length[:, None], length[None, :])
    apart = (rows < -1.0) | (gap > _LONGEST_GAP * width) | (gap > _LONGEST_GAP_PER_LENGTH * longest)
    # Prefer the nearer of two equally good continuations.
    misfit = misfit + 0.2 * gap / (_LONGEST_GAP * width)
    misfit[apart] = np.inf
    np.fill_diagonal(misfit, np.inf)
    return misfit
