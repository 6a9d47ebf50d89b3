"""Robust fits of many curves at once, for lane lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: c0, c1, c2 of u = c0 + c1 v + c2 v^2.
Curve = tuple[float, float, float]

_REWEIGHTED = 3  # iterations of a robust fit


class Groups:
    """Consecutive groups of values, such as those of the runs of several pieces. counts: (P,) size of each group, at
    least 1.

    The groups are handled together: one after another, the overhead of the numpy calls, which hold the GIL, would be
    ten times the computation.
    """

    def __init__(self, counts: Integers) -> None:
        self.counts = counts
        self.begins = counts.cumsum() - counts
        self._number = np.arange(len(counts))
        self._group_of = self._number.repeat(counts)
        self._middles = self.begins + counts // 2

    def spread(self, values: Floats) -> Floats:
        """(..., P) a value of each group -> (..., K) for each value its group's."""
        return values.take(self._group_of, axis=-1)  # several times faster than an index in brackets

    def sums(self, values: Floats) -> Floats:
        """(..., K) -> (..., P) sum over each group."""
        result: Floats = np.add.reduceat(values, self.begins, axis=-1)
        return result

    def medians(self, values: npt.NDArray[Any]) -> Floats:
        """(K,) nonnegative values -> (P,) upper median of each group."""
        # One sort of values that are shifted by group is several times faster than a sort by two keys, and the stable
        # sort is faster for values that are partly in order. The shift costs less than 1e-10 in accuracy for 256
        # groups of values up to 640.
        step = float(values.max()) + 1.0
        ordered = np.sort(values + self._group_of * step, kind="stable")
        result: Floats = ordered.take(self._middles) - self._number * step
        return result


def fit_curves(v: Floats, u: Floats, groups: Groups, curved: npt.NDArray[np.bool_]) -> Floats:
    """Robust fits of u = c0 + c1 v + c2 v^2 by iteratively reweighted least squares with Huber weights.

    v, u: (K,) coordinates; groups: which of them belong to each of P curves, v in ascending order. curved: (P,) where
    it is false, c2 is 0. Returns (3, P) c0, c1, c2.
    """
    origin = v[groups.begins]
    span = np.maximum(v[groups.begins + groups.counts - 1] - origin, 1.0)
    terms = _terms((v - groups.spread(origin)) / groups.spread(span), u)
    ridge = 1e-9 * groups.counts
    solution = _solve(groups.sums(terms), ridge, curved)
    for _ in range(_REWEIGHTED):
        residuals = np.abs(u - np.einsum("ij,ij->j", groups.spread(np.array(solution)), terms[:3]))
        scale = np.maximum(1.4826 * groups.medians(residuals), 0.25)
        weights = np.minimum(1.0, groups.spread(1.5 * scale) / np.maximum(residuals, 1e-12))
        solution = _solve(groups.sums(terms * weights), ridge, curved)
    return np.array(_shifted(*solution, origin, span))


def fit_curve(v: Floats, u: Floats, ends: tuple[float, float], curved: bool) -> Curve:
    """As fit_curves, for one curve, in less than a third of the time.

    v, u: (K,) in any order. ends: minimum and maximum of v. Returns c0, c1, c2.
    """
    count, origin, span = len(v), ends[0], max(ends[1] - ends[0], 1.0)
    terms = _terms((v - origin) / span, u)
    solution = _solve(terms.sum(axis=1).tolist(), 1e-9 * count, curved)
    for _ in range(_REWEIGHTED):
        residuals = np.abs(u - np.array(solution) @ terms[:3])
        scale = max(1.4826 * float(np.partition(residuals, count // 2)[count // 2]), 0.25)
        weights = np.minimum(1.0, 1.5 * scale / np.maximum(residuals, 1e-12))
        solution = _solve((terms @ weights).tolist(), 1e-9 * count, curved)
    return _shifted(*solution, origin, span)


def _terms(t: Floats, u: Floats) -> Floats:
    """(8, K) 1, t, t^2, t^3, t^4, u, u t, u t^2 of each point; _solve takes their sums over the points of a curve."""
    terms = np.ones((8, len(t)))
    terms[1] = t
    np.multiply(t, t, out=terms[2])
    np.multiply(terms[1:3], terms[2], out=terms[3:5])
    np.multiply(terms[:3], u, out=terms[5:])
    return terms


def _solve(sums: Any, ridge: Any, curved: Any) -> tuple[Any, Any, Any]:
    """Least squares: c0, c1, c2 from the sums of the terms of _terms; c2 is 0 unless `curved`.

    For one curve, all values are floats; for P curves, they are arrays (P,). ridge: added to the diagonal of the normal
    matrix, which makes it positive definite.
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
    return r0 / d0 - l10 * c1 - l20 * c2, c1, c2


def _shifted(a: Any, b: Any, c: Any, origin: Any, span: Any) -> tuple[Any, Any, Any]:
    """c0, c1, c2 of the curve u = a + b t + c t^2 with t = (v - origin) / span; floats or arrays, as in _solve."""
    b, c = b / span, c / (span * span)
    return a - b * origin + c * origin * origin, b - 2.0 * c * origin, c
