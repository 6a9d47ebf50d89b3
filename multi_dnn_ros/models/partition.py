"""Splits a sequence of layers into runs of about equal cost, preferring cuts that carry little data."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

#: Allowed excess of the costliest run over the optimum, in exchange for cheaper cuts: with estimated and with measured
#: times.
SLACK, KNOWN_SLACK = 0.10, 0.03
# Rates of a nominal machine, to estimate the time of an operation from its arithmetic, its memory traffic and a fixed
# cost. For balance only their ratios matter.
_FLOPS_PER_S = 100e9
BYTES_PER_S = 10e9
_OPERATION_S = 5e-6


def estimated_s(macs: int, moved_bytes: float) -> float:
    """Estimated seconds of an operation on a nominal machine."""
    return max(2.0 * macs / _FLOPS_PER_S, moved_bytes / BYTES_PER_S) + _OPERATION_S


def partition(
    costs: Sequence[float],
    cut_costs: Sequence[float],
    runs: int,
    slack: float = SLACK,
    limit: float = float("inf"),
) -> list[int]:
    """Cut a sequence of layers into `runs` runs.

    costs: cost of each layer, nonnegative. cut_costs: cost of a cut before each layer (the first entry is ignored).
    runs: number of runs; at most one per layer is made. limit: maximum cost of a run of several layers; ignored if
    `runs` is less than :func:`fewest_runs`. Returns the index of the first layer of every run.
    Method: minimize the bottleneck (cost of the costliest run) by bisection; then, among partitions whose bottleneck is
    at most `slack` (relative) above that, minimize the sum of cut costs by dynamic programming with a sliding window
    minimum, O(layers * runs).
    """
    layers = len(costs)
    runs = max(1, min(runs, layers))
    total = _totals(costs)
    even = _min_bottleneck(total, runs) * (1.0 + slack)
    limit = min(limit, even) if _runs_needed(total, limit) <= runs else even

    # best[end]: minimum sum of cut costs for the layers before `end` with the runs so far; first[run][end]: start of
    # the last of those runs. The possible starts of a run form a window that moves with its end.
    infinity = float("inf")
    best = [0.0] + [infinity] * layers
    first: list[list[int]] = []
    for run in range(runs):
        reached = [infinity] * (layers + 1)
        begins = [0] * (layers + 1)
        window: deque[tuple[float, int]] = deque()
        for end in range(1, layers + 1):
            begin = end - 1
            value = best[begin] + (cut_costs[begin] if run else 0.0)
            while window and window[-1][0] >= value:
                window.pop()
            window.append((value, begin))
            while window and end - window[0][1] > 1 and total[end] - total[window[0][1]] > limit:
                window.popleft()
            if window:
                reached[end], begins[end] = window[0]
        best = reached
        first.append(begins)
    starts: list[int] = []
    end = layers
    for begins in reversed(first):
        end = begins[end]
        starts.append(end)
    return starts[::-1]


def fewest_runs(costs: Sequence[float], limit: float) -> int:
    """Minimum number of runs of consecutive layers such that none costs more than `limit`.

    A layer above the limit is a run of its own. Method: greedy.
    """
    return _runs_needed(_totals(costs), limit)


def _totals(costs: Sequence[float]) -> list[float]:
    """Prefix sums of the costs."""
    return [0.0, *accumulate(costs)]


def _min_bottleneck(total: Sequence[float], runs: int) -> float:
    low = max(after - before for before, after in pairwise(total))
    high = total[-1]
    for _ in range(50):
        middle = (low + high) / 2
        if _runs_needed(total, middle) <= runs:
            high = middle
        else:
            low = middle
    return high


def _runs_needed(total: Sequence[float], limit: float) -> int:
    runs, start = 1, 0
    for end in range(1, len(total)):
        if total[end] - total[start] > limit and end - start > 1:
            runs, start = runs + 1, end - 1
    return runs
