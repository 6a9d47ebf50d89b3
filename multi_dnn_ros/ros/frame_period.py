"""Learns the period of a camera from the stamps of its images, although some images are missing.

The gap between the stamps of two consecutive images is a multiple of the period, and one period if no image is missing
between them. The period is the longest time of which nearly all gaps are multiples, within the jitter of the stamps.
Nothing here needs ROS. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Maximum distance of a gap from a multiple of the period, as a share of the period. A random gap is within it with
#: probability 0.5, and at least 11 of 12 random gaps (see _FITTING) with probability 3e-3.
_TOLERANCE = 0.25
#: Minimum share of gaps within the tolerance; late stamps are outliers.
_FITTING = 0.9
#: Minimum number of gaps to learn from: if each is one period, and if images are missing.
MIN_STEADY = 5
MIN_SPARSE = 12
#: Maximum length of the shortest gaps, in periods.
_MAX_PERIODS = 12
#: Minimum period; shorter ones fit any gaps.
_MIN_PERIOD_NS = 1_000_000


def period_of(gaps: Sequence[int]) -> float | None:
    """The period of which the gaps are multiples; None if they are too few or too irregular.

    gaps: positive differences between consecutive stamps.
    """
    if len(gaps) < MIN_STEADY:
        return None
    values = np.asarray(gaps, np.float64)
    bases = np.unique([*np.sort(values)[:5], *np.quantile(values, (0.1, 0.25, 0.5))])
    candidates = np.sort((bases[:, None] / np.arange(1, _MAX_PERIODS + 1)).ravel())[::-1]
    periods = _refined(values, candidates[candidates >= _MIN_PERIOD_NS])
    counts = multiples(values, periods[:, None])
    near = (np.abs(values - counts * periods[:, None]) <= _TOLERANCE * periods[:, None]) & (counts > 0)
    accepted = near.mean(axis=1) >= _FITTING
    if len(values) < MIN_SPARSE:
        accepted &= (counts == 1).mean(axis=1) > 0.5
    return float(periods[np.argmax(accepted)]) if accepted.any() else None


def multiples(gaps: npt.NDArray[np.float64], period_ns: float | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The length of each gap in periods; 0 after an image whose stamp was late."""
    return np.rint(gaps / period_ns).astype(np.int64)


def is_steady(gaps: Sequence[int], period_ns: float) -> bool:
    """Whether each gap is one period: no image is missing, or the rate of the camera has changed to this one."""
    values = np.asarray(gaps, np.float64)
    return bool(np.mean(np.abs(values - period_ns) <= _TOLERANCE * period_ns) >= _FITTING)


def _refined(gaps: npt.NDArray[np.float64], candidates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The candidates, refined by least squares over the gaps that fit each, to average out the jitter.

    Candidates that no gap fits are dropped.
    """
    counts = multiples(gaps, candidates[:, None])
    near = (counts > 0) & (np.abs(gaps - counts * candidates[:, None]) <= 2 * _TOLERANCE * candidates[:, None])
    near, counts = near[near.any(axis=1)], counts[near.any(axis=1)]
    # Use the shorter half of the gaps, because the error of the candidate is multiplied in longer ones.
    ordered = np.sort(np.where(near, counts, np.iinfo(np.int64).max), axis=1)
    number = near.sum(axis=1, keepdims=True)
    middle = [np.take_along_axis(ordered, index, axis=1) for index in ((number - 1) // 2, number // 2)]
    near &= counts <= np.maximum(1, (middle[0] + middle[1]) // 2)
    return np.asarray((gaps * counts * near).sum(axis=1) / (counts**2 * near).sum(axis=1), np.float64)
