"""The period of a camera, learnt from the stamps of the frames that arrived, although some frames are missing.

The gap between the stamps of two frames that arrived one after the other is a multiple of the camera's period: 1 when
nothing is missing between them. The period is the longest time of which nearly all gaps are multiples, within the
jitter of the stamps. Nothing here needs ROS. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: How far a gap may be from a multiple of the period, as a share of the period. Uniformly distributed gaps are within
#: it with probability 0.5, so 12 of them all are with 2e-4.
_TOLERANCE = 0.25
#: Share of the gaps that must be within the tolerance: stamps taken late are outliers.
_FITTING = 0.9
#: The fewest gaps that say something where each of them is one period, and where frames are missing.
LEAST_STEADY = 5
LEAST_SPARSE = 12
#: The smallest gaps may be several periods long.
_MOST_PERIODS_IN_A_GAP = 12
#: No camera is faster; shorter candidates fit anything.
_SHORTEST_NS = 1_000_000


def period_of(gaps: Sequence[int]) -> float | None:
    """The period of which the gaps are multiples; None where they are too few or too irregular to tell.

    gaps: positive differences between consecutive stamps.
    """
    if len(gaps) < LEAST_STEADY:
        return None
    values = np.asarray(gaps, np.float64)
    bases = np.unique([*np.sort(values)[:5], *np.quantile(values, (0.1, 0.25, 0.5))])
    candidates = (bases[:, None] / np.arange(1, _MOST_PERIODS_IN_A_GAP + 1)).ravel()
    for candidate in np.sort(candidates[candidates >= _SHORTEST_NS])[::-1]:
        period = _refined(values, float(candidate))
        if period is None or not _fits(values, period):
            continue
        steady = np.mean(multiples(values, period) == 1) > 0.5
        return period if steady or len(values) >= LEAST_SPARSE else None
    return None


def multiples(gaps: npt.NDArray[np.float64], period_ns: float) -> npt.NDArray[np.int64]:
    """How many periods each gap is; 0 for a frame whose predecessor was stamped late."""
    return np.rint(gaps / period_ns).astype(np.int64)


def is_steady(gaps: Sequence[int], period_ns: float) -> bool:
    """Whether the gaps are one period each: nothing is missing, or the camera's rate has changed to this one."""
    values = np.asarray(gaps, np.float64)
    return bool(np.mean(np.abs(values - period_ns) <= _TOLERANCE * period_ns) >= _FITTING)


def _refined(gaps: npt.NDArray[np.float64], candidate: float) -> float | None:
    """Least squares over the gaps that fit the candidate: its own jitter averages out."""
    counts = multiples(gaps, candidate)
    near = (counts > 0) & (np.abs(gaps - counts * candidate) <= 2 * _TOLERANCE * candidate)
    # Long gaps would carry the candidate's error many times: the shorter half decides first.
    near &= counts <= max(1, int(np.median(counts[near]))) if near.any() else near
    if not near.any():
        return None
    return float((gaps[near] * counts[near]).sum() / (counts[near] ** 2).sum())


def _fits(gaps: npt.NDArray[np.float64], period: float) -> bool:
    counts = multiples(gaps, period)
    fitting = (np.abs(gaps - counts * period) <= _TOLERANCE * period) & (counts > 0)
    return bool(np.mean(fitting) >= _FITTING)
