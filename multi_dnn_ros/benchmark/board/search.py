"""The highest rate at which nearly all frames are served: a search by bisection, without clocks and processes."""

from __future__ import annotations

from math import sqrt

#: The search ends when the highest served and the lowest failing rate differ by at most this share.
PRECISION = 0.05
_START_HZ = 30.0


class RateSearch:
    """Doubles or halves the rate until one rate is served and a higher one is not, then takes their geometric mean.

    lowest_hz, highest_hz: range of the rates. best_hz: the highest rate that was served, below every rate that was not.
    failing_hz: the lowest rate that was not served.
    """

    def __init__(self, lowest_hz: float, highest_hz: float) -> None:
        self._lowest_hz, self._highest_hz = min(lowest_hz, highest_hz), highest_hz
        self._served: list[float] = []
        self.failing_hz: float | None = None

    @property
    def best_hz(self) -> float | None:
        return max((rate for rate in self._served if rate < (self.failing_hz or float("inf"))), default=None)

    def add(self, rate_hz: float, passed: bool) -> None:
        """Result of a trial."""
        if passed:
            self._served.append(rate_hz)
        else:
            self.failing_hz = min(rate_hz, self.failing_hz or rate_hz)

    def next_hz(self) -> float | None:
        """The next rate to try, with four significant digits; None: the search has ended."""
        low, high = self.best_hz, self.failing_hz
        if (high or float("inf")) <= self._lowest_hz or (low or 0.0) >= self._highest_hz:
            return None
        if low is None:
            rate_hz = _START_HZ if high is None else high / 2.0
        elif high is None:
            rate_hz = 2.0 * low
        elif high > low * (1.0 + PRECISION):
            rate_hz = sqrt(low * high)
        else:
            return None
        return min(max(float(f"{rate_hz:.4g}"), self._lowest_hz), self._highest_hz)
