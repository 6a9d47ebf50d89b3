"""How well the jobs of a fleet were served under a policy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.fleet.sharing import POLICIES


@dataclass
class PolicyResult:
    """slow_downs: completion time / completion time alone, by job. use: mean over the units and over the time from
    the start of the first job to the end of the last one, 0..1; a unit whose use cannot be measured counts as 0.
    total_s: this time. changes: number of changes of the shares of a job after its start. reverted: number of changes
    among these that undid another one.
    """

    policy: str
    slow_downs: dict[str, float]
    use: float
    total_s: float
    changes: int
    reverted: int

    def figures(self) -> dict[str, Any]:
        """The figures for a report; slow-downs by largest, median and mean."""
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

    def cells(self, total: str) -> list[str]:
        """Cells of a table under `columns`. total: the total time."""
        figures = self.figures()
        return [
            self.policy, f"{figures['largest_slow_down']:.2f}", f"{figures['median_slow_down']:.2f}",
            f"{self.use:.1%}", total, f"{self.changes} ({self.reverted})",
        ]  # fmt: skip


def columns(total: str) -> list[str]:
    """Headers of the cells of results. total: that of the total time, with its unit."""
    return ["policy", "largest slow-down", "median", "use", total, "changes (reverted)"]


def compare(results: Mapping[str, PolicyResult]) -> dict[str, float | None]:
    """Compare fair shares with the baselines. results: by policy, one for each of POLICIES.

    largest_slow_down_below_worse, largest_slow_down_below_better: by which part the largest slow-down is lower than
    that of the worse and of the better baseline; negative: it is higher. use_gain: by which part the use is above that
    of the baseline with the higher use; None: no use was measured. total_time_ratio: total time / total time of the
    shorter baseline.
    """
    fair = results["fair"].figures()
    others = [results[name].figures() for name in POLICIES[1:]]
    largest = [other["largest_slow_down"] for other in others]
    use = max(other["use"] for other in others)
    return {
        "largest_slow_down_below_worse": 1.0 - fair["largest_slow_down"] / max(largest),
        "largest_slow_down_below_better": 1.0 - fair["largest_slow_down"] / min(largest),
        "use_gain": fair["use"] / use - 1.0 if use else None,
        "total_time_ratio": fair["total_s"] / min(other["total_s"] for other in others),
    }
