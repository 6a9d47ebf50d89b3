"""How well the jobs of a fleet were served under a policy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.fleet.sharing import POLICIES


@dataclass
class PolicyResult:
    """slow_downs: completion time / completion time alone, by job. use: mean over units and time until the last job
    ended, 0..1. total_s: time until then. changes: number of changes of shares after a job's start. reverted: number of
    these that were reverted.
    """

    policy: str
    slow_downs: dict[str, float]
    use: float
    total_s: float
    changes: int
    reverted: int

    def figures(self) -> dict[str, Any]:
        """The figures for a report."""
        values = list(self.slow_downs.values())
        return {
            "largest_slow_down": max(values),
            "median_slow_down": statistics.median(values),
            "mean_slow_down": sum(values) / len(values),
            "use": self.use,
            "total_s": self.total_s,
            "changes": self.changes,
            "reverted": self.reverted,
        }


def compare(results: Mapping[str, PolicyResult]) -> dict[str, float]:
    """Fair shares against the baselines: by how much (0..1) the largest slow-down is lower than that of the worse and
    of the better baseline, use relative to the better baseline's, and total time relative to the shorter baseline's.
    """
    fair = results["fair"].figures()
    others = [results[name].figures() for name in POLICIES[1:]]
    largest = [other["largest_slow_down"] for other in others]
    return {
        "largest_slow_down_below_worse": 1.0 - fair["largest_slow_down"] / max(largest),
        "largest_slow_down_below_better": 1.0 - fair["largest_slow_down"] / min(largest),
        "use_gain": fair["use"] / max(other["use"] for other in others) - 1.0,
        "total_time_ratio": fair["total_s"] / min(other["total_s"] for other in others),
    }
