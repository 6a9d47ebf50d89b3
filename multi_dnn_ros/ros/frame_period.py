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
    candidates = np.sort((bases[:, None] / np.arange(1, _MOST_PERIODS_IN_A_GAP + 1)).ravel())[::-1]
    periods = _refined(values, candidates[candidates >= _SHORTEST_NS])
    counts = multiples(values, periods[:, None])
    near = (np.abs(values - counts * periods[:, None]) <= _TOLERANCE * periods[:, None]) & (counts > 0)
    accepted = near.mean(axis=1) >= _FITTING
    if len(values) < LEAST_SPARSE:
        accepted &= (counts == 1).mean(axis=1) > 0.5
    return float(periods[np.argmax(accepted)]) if accepted.any() else None


def multiples(gaps: npt.NDArray[np.float64], period_ns: float | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """How many periods each gap is; 0 for a frame whose predecessor was stamped late."""
    return np.rint(gaps / period_ns).astype(np.int64)


def is_steady(gaps: Sequence[int], period_ns: float) -> bool:
    """Whether the gaps are one period each: nothing is missing, or the camera's rate has changed to this one."""
    values = np.asarray(gaps, np.float64)
    return bool(np.mean(np.abs(values - period_ns) <= _TOLERANCE * period_ns) >= _FITTING)


def _refined(gaps: npt.NDArray[np.float64], candidates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares over the gaps that fit each candidate: its own jitter averages out.

    Candidates that no gap fits are left out.
    """
    counts = multiples(gaps, candidates[:, None])
    near = (counts > 0) & (np.abs(gaps - counts * candidates[:, None]) <= 2 * _TOLERANCE * candidates[:, None])
    near, counts = near[near.any(axis=1)], counts[near.any(axis=1)]
    # Long gaps would carry the candidate's error many times: the shorter half decides first.
    ordered = np.sort(np.where(near, counts, np.iinfo(np.int64).max), axis=1)
    number = near.sum(axis=1, keepdims=True)
    middle = [np.take_along_axis(ordered, index, axis=1) for index in ((number - 1) // 2, number // 2)]
    near &= counts <= np.maximum(1, (middle[0] + middle[1]) // 2)
    return np.asarray((gaps * counts * near).sum(axis=1) / (counts**2 * near).sum(axis=1), np.float64)
