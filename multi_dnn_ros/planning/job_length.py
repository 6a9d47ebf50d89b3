"""Number of jobs for which no job occupies the device for longer than a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.models.partition import fewest_runs

#: Maximum number of jobs, as of parameter `dnn.<dnn>.jobs`.
MAX_JOBS = 256
#: Maximum acceptable share of launch cost in the jobs' time.
LAUNCH_SHARE = 0.05


@dataclass(frozen=True)
class JobLength:
    """jobs: number of jobs. limit_s: maximum time of the layers of a job, for models.cut.

    launch_share: share of launch cost in the time of all jobs. too_long: indices of layers that exceed limit_s by
    themselves. capped: MAX_JOBS are not enough.
    """

    jobs: int
    limit_s: float
    launch_share: float
    too_long: tuple[int, ...]
    capped: bool

    @property
    def launch_pays(self) -> bool:
        """Whether the launch cost stays under LAUNCH_SHARE."""
        return self.launch_share < LAUNCH_SHARE


def job_length(layers_s: Sequence[float], bound_s: float, launch_s: float) -> JobLength:
    """The minimum number of jobs such that none takes longer than `bound_s`. Each additional launch has a cost.

    layers_s: seconds of each layer, in order. launch_s: launch cost of a job, which counts towards the bound. A layer
    longer than the bound is a separate job. Raises ValueError for a bound that is not above 0, or a negative time.
    """
    if not bound_s > 0.0:
        raise ValueError(f"bound_s is {bound_s}; allowed: above 0")
    if launch_s < 0.0 or any(not seconds >= 0.0 for seconds in layers_s):
        raise ValueError("a layer's or a launch's time is negative or not a number")
    limit_s = max(0.0, bound_s - launch_s)
    wanted = fewest_runs(layers_s, limit_s)
    jobs = min(wanted, MAX_JOBS)
    launches_s = jobs * launch_s
    return JobLength(
        jobs=jobs,
        limit_s=limit_s,
        launch_share=launches_s / (sum(layers_s) + launches_s) if launches_s else 0.0,
        too_long=tuple(number for number, seconds in enumerate(layers_s) if seconds > limit_s),
        capped=wanted > jobs,
    )
