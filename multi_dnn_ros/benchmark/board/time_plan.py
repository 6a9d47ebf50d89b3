"""How the time of a run is divided among the mixes; pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from multi_dnn_ros.benchmark.board.search import min_frames

#: Time of a trial in which nothing is measured: the start of the camera processes, and the end.
OVERHEAD_S = 5.0
#: Minimum duration of a trial, at any rate.
MIN_TRIAL_S = 3.0
MIN_TRIALS = 4
MAX_TRIALS = 14
#: Limits of the long run at the highest rate, which takes the rest of a mix's time.
MIN_LONG_S = 8.0
MAX_LONG_S = 300.0
#: Share of a mix's time, without its start, that is kept for the long run.
_LONG_SHARE = 0.25
#: The longest trial takes this share of the time of the search; the rest is for the first, short ones.
_LONGEST_SHARE = 0.5


@dataclass(frozen=True)
class Demand:
    """A mix before it runs. start_s: estimated time until its node is active. frame_s: estimated time of one frame,
    None: unknown.
    """

    start_s: float
    frame_s: float | None = None

    @property
    def min_s(self) -> float:
        """The shortest time in which a rate can be found."""
        trial_s = max(MIN_TRIAL_S, min_frames() * (self.frame_s or 0.0))
        return self.start_s + MIN_TRIALS * (OVERHEAD_S + trial_s) + MIN_LONG_S


@dataclass(frozen=True)
class Share:
    """Time of one mix in seconds. long_s: kept for the long run at the highest rate. trial_s: longest trial."""

    seconds: float
    start_s: float
    long_s: float
    trial_s: float

    @property
    def trials(self) -> int:
        """Trials that fit if each is as short as possible."""
        work_s = self.seconds - self.start_s - self.long_s
        return max(MIN_TRIALS, min(MAX_TRIALS, int(work_s / (OVERHEAD_S + MIN_TRIAL_S))))


def plan_time(total_s: float, demands: Mapping[str, Demand]) -> dict[str, Share | str]:
    """The share of each mix, or why it has none. Mixes come in order of importance.

    A mix is left out if its minimum time is more than the minimum times of the mixes before it leave; the others divide
    the rest equally.
    """
    plan: dict[str, Share | str] = {}
    chosen: list[str] = []
    left_s = total_s
    for name, demand in demands.items():
        if demand.min_s > left_s:
            frame = f", {demand.frame_s:.2g} s per frame" if demand.frame_s is not None else ""
            plan[name] = (
                f"needs at least {demand.min_s:.0f} s by estimate{frame}; {max(0.0, left_s):.0f} s are left; "
                "a longer --minutes or fewer --mixes make room"
            )
        else:
            plan[name] = ""
            chosen.append(name)
            left_s -= demand.min_s
    for name in chosen:
        plan[name] = _share(demands[name].min_s + left_s / len(chosen), demands[name].start_s)
    return plan


def _share(seconds: float, start_s: float) -> Share:
    work_s = seconds - start_s
    long_s = max(MIN_LONG_S, _LONG_SHARE * work_s)
    return Share(seconds, start_s, long_s, max(MIN_TRIAL_S, _LONGEST_SHARE * (work_s - long_s) - OVERHEAD_S))
