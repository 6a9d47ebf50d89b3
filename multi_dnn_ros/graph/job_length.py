"""How many jobs a DNN is cut into, so that none holds the device for longer than a bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.graph.partition import fewest_runs

#: As parameter `dnn.<dnn>.jobs`.
MOST_JOBS = 256
#: Part of the time of jobs that launching them should stay under.
LAUNCH_SHARE = 0.05


@dataclass(frozen=True)
class JobLength:
    """jobs: how many. limit_s: what the layers of a job may take together, for models.cut.

    launch_share: part of all jobs' time that launching takes. too_long: numbers of the layers that take longer than
    limit_s by themselves. capped: MOST_JOBS are not enough.
    """

    jobs: int
    limit_s: float
    launch_share: float
    too_long: tuple[int, ...]
    capped: bool

    @property
    def launch_pays(self) -> bool:
        """Whether launching stays under LAUNCH_SHARE."""
        return self.launch_share < LAUNCH_SHARE


def job_length(layers_s: Sequence[float], bound_s: float, launch_s: float) -> JobLength:
    """The fewest jobs of which none takes longer than `bound_s`; few, because each has to be launched.

    layers_s: seconds of each layer, in order. launch_s: of a job, in which no layer runs yet; it counts towards the
    bound. A layer that is longer than the bound is a job of its own. Raises ValueError for a bound that is not above 0,
    or a negative time.
    """
    if not bound_s > 0.0:
        raise ValueError(f"bound_s is {bound_s}; allowed: above 0")
    if launch_s < 0.0 or any(not seconds >= 0.0 for seconds in layers_s):
        raise ValueError("a layer's or a launch's time is negative or no number")
    limit_s = max(0.0, bound_s - launch_s)
    wanted = fewest_runs(layers_s, limit_s)
    jobs = min(wanted, MOST_JOBS)
    launches_s = jobs * launch_s
    return JobLength(
        jobs=jobs,
        limit_s=limit_s,
        launch_share=launches_s / (sum(layers_s) + launches_s) if launches_s else 0.0,
        too_long=tuple(number for number, seconds in enumerate(layers_s) if seconds > limit_s),
        capped=wanted > jobs,
    )
