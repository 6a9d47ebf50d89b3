"""Assignment of boxes to tracks."""

from __future__ import annotations

import lap
import numpy as np
import numpy.typing as npt


def assign(weights: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The pairs with the largest total weight; each row and each column is in at most one pair.

    weights: (N, M), finite; pairs with a weight of 0 or less are not allowed. Returns the rows, ascending, and the
    columns, each (K,) int64. Computed by the algorithm of Jonker and Volgenant (library lap).
    """
    if not weights.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, columns, _ = lap.lapjv(-weights.astype(np.float64), extend_cost=True, cost_limit=0.0)
    rows = np.flatnonzero(columns >= 0)
    rows = rows[weights[rows, columns[rows]] > 0]
    return rows, columns[rows].astype(np.int64)
