"""Finds lane lines as multi_dnn_ros.vision.decoders.lane_lines does, in plain loops over runs, pieces and pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

#: Row, first column, and one past the last column.
Run = tuple[int, int, int]

MAX_CHAINS, MAX_PIECES = 256, 48


@dataclass(eq=False)
class Piece:
    """runs: in any order. curve: c0, c1, c2 of u = c0 + c1 v + c2 v^2. top, bottom: u, v and slope at both ends."""

    runs: list[Run]
    curve: tuple[float, ...]
    top: tuple[float, float, float]
    bottom: tuple[float, float, float]
    length: float
    thickness: float


def lane_lines(mask: np.ndarray) -> list[tuple[set[tuple[int, int]], tuple[float, ...]]]:
    """The lines of a mask (h, w) of 0 and 1, the longest first: (row, column) of their pixels, and their curve."""
    width = mask.shape[1]
    pieces = [piece(chain) for chain in chains(mask)]
    pieces = [one for one in pieces if one.length >= 3 / 320 * width and one.thickness <= 20 / 320 * width]
    pieces = sorted(pieces, key=lambda one: -one.length)[:MAX_PIECES]
    while True:
        pairs = [
            (misfit(lower, upper, width), lower, upper) for lower in pieces for upper in pieces if lower is not upper
        ]
        least, lower, upper = min(pairs, key=lambda pair: pair[0], default=(math.inf, None, None))
        if lower is None or upper is None or least > 1.0:
            break
        pieces = [one for one in pieces if one is not lower and one is not upper] + [piece(lower.runs + upper.runs)]
    lines = [one for one in pieces if one.length >= 14 / 320 * width and is_line(one)]
    return [
        ({(row, u) for row, begin, end in line.runs for u in range(begin, end)}, line.curve)
        for line in sorted(lines, key=lambda line: -line.length)
    ]


def chains(mask: np.ndarray) -> list[list[Run]]:
    """The longest chains of runs that touch one-to-one in adjacent rows, corners included."""
    rows: list[list[Run]] = []
    for row, values in enumerate(mask.tolist()):
        runs, begin = [], None
        for u, value in enumerate([*values, 0]):
            if value and begin is None:
                begin = u
            elif not value and begin is not None:
                runs.append((row, begin, u))
                begin = None
        rows.append(runs)

    def touching(run: Run, others: list[Run]) -> list[Run]:
        return [other for other in others if other[1] <= run[2] and other[2] >= run[1]]

    chain_of: dict[Run, list[Run]] = {}
    found = []
    for row, runs in enumerate(rows):
        for run in runs:
            above = touching(run, rows[row - 1]) if row else []
            if len(above) == 1 and len(touching(above[0], runs)) == 1:
                chain_of[run] = chain_of[above[0]]
                chain_of[run].append(run)
            else:
                chain_of[run] = [run]
                found.append(chain_of[run])
    return sorted(found, key=lambda chain: -math.hypot(center(chain[-1]) - center(chain[0]), len(chain) - 1))[
        :MAX_CHAINS
    ]


def center(run: Run) -> float:
    return (run[1] + run[2] - 1) / 2


def piece(runs: list[Run]) -> Piece:
    v, u = np.array([run[0] for run in runs], float), np.array([center(run) for run in runs])
    high, low = float(v.min()), float(v.max())
    rows = low - high + 1
    terms = [np.ones_like(v), v - high]
    if rows >= 12 and len(runs) > 2:
        terms.append((v - high) ** 2)
    design = np.array(terms[: len(runs)]).T
    weights = np.ones_like(v)
    for _ in range(4):  # Huber weights
        root = np.sqrt(weights)
        solution = np.linalg.lstsq(design * root[:, None], u * root, rcond=None)[0]
        residuals = np.abs(u - design @ solution)
        scale = max(1.4826 * float(np.sort(residuals)[len(runs) // 2]), 0.25)
        weights = np.minimum(1.0, 1.5 * scale / np.maximum(residuals, 1e-12))
    a, b, c = (*solution.tolist(), 0.0, 0.0)[:3]
    curve = (a - b * high + c * high**2, b - 2 * c * high, c)
    top, bottom = ((a + b * t + c * t * t, high + t, b + 2 * c * t) for t in (0.0, low - high))
    stretch = math.hypot(1.0, (bottom[0] - top[0]) / max(rows - 1, 1))
    thickness = sorted(end - begin for _, begin, end in runs)[len(runs) // 2] / stretch
    return Piece(runs, curve, top, bottom, rows * stretch, thickness)


def misfit(lower: Piece, upper: Piece, width: int) -> float:
    """How far two pieces miss each other when they are extended, relative to what is allowed."""
    across, rows = lower.top[0] - upper.bottom[0], lower.top[1] - upper.bottom[1]
    gap = math.hypot(across, rows)
    if rows < -1 or gap > min(0.35 * width, 8 * max(lower.length, upper.length)):
        return math.inf
    noise = 0.6 / 320 * width

    def miss(slope: float, length: float) -> float:
        direction = noise * math.sqrt(12 / length) / length
        allowed = min(2.5 * (noise + gap * direction) + 0.35 * gap * gap / width, 6 / 320 * width)
        return abs(across - rows * slope) / math.hypot(1.0, slope) / allowed

    return max(miss(lower.top[2], lower.length), miss(upper.bottom[2], upper.length)) + 0.2 * gap / (0.35 * width)


def is_line(one: Piece) -> bool:
    slope = (one.bottom[0] - one.top[0]) / max(one.bottom[1] - one.top[1], 1.0)
    return one.length >= 2.5 * one.thickness and abs(slope) <= 14
