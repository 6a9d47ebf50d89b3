"""Step times of one job that has its units for itself, by its shares; estimated where it was not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.fleet.shares import Shares, used


def parts(shares: Shares) -> str:
    """The tenths by size, such as `7 3`: all units of a fleet are equal, so times do not depend on their order."""
    return " ".join(map(str, sorted((tenths for tenths in shares if tenths), reverse=True)))


@dataclass
class ExclusiveTimes:
    """step_s: measured seconds of a step. use: measured use (0..1) of the most used unit. Both by :func:`parts`."""

    step_s: dict[str, float] = field(default_factory=dict)
    use: dict[str, float] = field(default_factory=dict)

    def estimated_step_s(self, shares: Shares, alone_s: float) -> float:
        """Seconds of a step. alone_s: time of a step with all units for itself, which no estimate is below.

        Shares that were not measured: interpolated linearly between measured ones by the largest number of tenths, and
        outside of these in proportion to it. Without any measured shares: alone_s.
        """
        key = parts(shares)
        if key in self.step_s:
            return self.step_s[key]
        if not self.step_s:
            return alone_s
        largest = max(shares)
        known: dict[int, float] = {}
        for each, seconds in self.step_s.items():
            tenths = int(each.partition(" ")[0])
            known[tenths] = min(seconds, known.get(tenths, seconds))
        below = max((tenths for tenths in known if tenths <= largest), default=None)
        above = min((tenths for tenths in known if tenths >= largest), default=None)
        if below is None or above is None:
            nearest = above if below is None else below
            assert nearest is not None
            return max(alone_s, known[nearest] * largest / nearest)
        part = (largest - below) / max(1, above - below)
        return max(alone_s, known[below] + part * (known[above] - known[below]))

    def estimated_use(self, shares: Shares) -> float:
        """Use (0..1) of its units; 1 if it was not measured."""
        return self.use.get(parts(shares), 1.0)

    def record(self, shares: Shares, step_s: float) -> None:
        """The job has been measured with these shares, and had its units for itself."""
        self.step_s[parts(shares)] = step_s

    def record_use(self, shares: Shares, use: Sequence[float]) -> None:
        """The use of each unit while the job trained on its units without others; 0 if it cannot be measured."""
        largest = max(use[unit] for unit in used(shares))
        if largest > 0.0:
            self.use[parts(shares)] = largest
