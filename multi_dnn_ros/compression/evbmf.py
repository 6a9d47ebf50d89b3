"""Number of singular values of a noisy matrix that are signal: empirical variational Bayesian matrix factorization.

S. Nakajima, M. Sugiyama, S. D. Babacan, R. Tomioka, "Global analytic solution of fully-observed variational Bayesian
matrix factorization", JMLR 14 (2013). The rank is the number of singular values above the threshold of their Theorem 2;
the unknown noise variance is the minimizer of their free energy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from multi_dnn_ros.common.extras import optional

_GRID = 200


def evbmf_rank(singular_values: NDArray[np.float64], rows: int, columns: int) -> int:
    """Rank of the signal in a (rows, columns) matrix of low rank plus Gaussian noise, from its singular values.

    singular_values: all min(rows, columns) of them, descending. Returns 0 if all is noise or zero; for a matrix of
    exactly low rank, its rank.
    """
    short, long = min(rows, columns), max(rows, columns)
    if len(singular_values) != short:
        raise ValueError(f"{len(singular_values)} singular values of a {rows} x {columns} matrix; expected {short}")
    energy = np.asarray(singular_values, dtype=np.float64) ** 2
    largest = float(energy[0]) if short else 0.0
    if not largest > 0.0 or not math.isfinite(largest):
        return 0
    # Treat values at rounding level as zeros, because a matrix of exactly low rank has no noise to estimate.
    energy = energy / largest
    numerical = int(np.count_nonzero(energy > (max(rows, columns) * np.finfo(np.float32).eps) ** 2))
    if numerical < short:
        return numerical
    alpha = short / long
    threshold = _threshold(alpha)
    variance = _noise_variance(energy, long, alpha, threshold)
    return int(np.count_nonzero(energy > long * variance * threshold))


def _threshold(alpha: float) -> float:
    """x underbar in the paper, the square of the smallest normalized singular value that is kept. It follows from tau,
    the zero of phi(tau) + phi(tau / alpha) with phi(z) = log(z + 1) / z - 1/2.
    """
    with optional("EVBMF"):
        from scipy.optimize import brentq

    def phi(z: float) -> float:
        return math.log1p(z) / z - 0.5

    tau = float(brentq(lambda z: phi(z) + phi(z / alpha), 1e-9, 10.0))
    return (1.0 + tau) * (1.0 + alpha / tau)


def _noise_variance(energy: NDArray[np.float64], long: int, alpha: float, threshold: float) -> float:
    """The noise variance that minimizes the free energy, between the bounds of the paper's Theorem 4.

    energy: squared singular values, descending, all above 0.
    """
    with optional("EVBMF"):
        from scipy.optimize import minimize_scalar

    short = len(energy)
    max_rank = min(math.ceil(short / (1.0 + alpha)) - 1, short - 1)
    upper = float(energy.sum()) / (short * long)
    lower = max(float(energy[max_rank]) / (long * threshold), float(energy[max_rank:].mean()) / long)
    if not lower < upper:
        return upper

    def free_energy(log_variance: float) -> float:
        x = energy / (long * math.exp(log_variance))
        kept = x > threshold
        psi = x - np.log(x)
        tau = x[kept] - (1.0 + alpha)
        tau = 0.5 * (tau + np.sqrt(np.maximum(tau**2 - 4.0 * alpha, 0.0)))
        psi[kept] += np.log1p(tau) + alpha * np.log1p(tau / alpha) - tau
        return float(psi.sum())

    # Several local minima are possible: search the whole range on a grid, then refine around the best point.
    grid = np.linspace(math.log(lower), math.log(upper), _GRID)
    best = int(np.argmin([free_energy(log_variance) for log_variance in grid]))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _GRID - 1)]))
    found = minimize_scalar(free_energy, bounds=around, method="bounded", options={"xatol": 1e-6})
    exact, coarse = float(found.x), float(grid[best])
    return math.exp(exact if free_energy(exact) <= free_energy(coarse) else coarse)
