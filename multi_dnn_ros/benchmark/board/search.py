"""The highest rate at which nearly all frames are served: a search by bisection, without clocks and processes."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

#: A rate is served if less than this share of the results is missing.
DROP_LIMIT = 0.05
#: Confidence of each of the two bounds by which a trial is decided.
CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf(CONFIDENCE)
#: Factor between the rates that are tried until both a served and a failing rate are known.
_FACTOR = 2.0
_START_HZ = 30.0
#: The search ends when the highest served and the lowest failing rate differ by at most this share.
PRECISION = 0.05
#: Under overload the rate that is served is close to the highest one; these multiples of it are tried first.
_HINTS = (0.93, 1.07)


def bounds(share: float, samples: float) -> tuple[float, float]:
    """One-sided lower and upper bound of a probability, each at CONFIDENCE, by Wilson's score interval.

    share: observed, 0 to 1. samples: number of independent observations; (0, 1) without any.
    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    if samples <= 0:
        return 0.0, 1.0
    square = _Z * _Z / samples
    center = share + square / 2.0
    half = _Z * sqrt(share * (1.0 - share) / samples + square / (4.0 * samples))
    return max(0.0, (center - half) / (1.0 + square)), min(1.0, (center + half) / (1.0 + square))


def served(share: float, frames: float) -> bool | None:
    """Whether the share of drops is under DROP_LIMIT; None: so few frames do not decide it."""
    low, high = bounds(min(1.0, max(0.0, share)), frames)
    return True if high <= DROP_LIMIT else False if low >= DROP_LIMIT else None


def min_frames() -> int:
    """Number of frames after which a trial without drops is decided."""
    frames = 1
    while served(0.0, frames) is None:
        frames += 1
    return frames


@dataclass(frozen=True)
class RateRange:
    """Rates to search, in Hz."""

    lowest_hz: float
    highest_hz: float

    def __post_init__(self) -> None:
        if not 0.0 < self.lowest_hz <= self.highest_hz:
            raise ValueError(f"rates from {self.lowest_hz:g} to {self.highest_hz:g} Hz: the range is empty")


class RateSearch:
    """Bisection on a logarithmic scale. trials: maximum number of rates that :meth:`next_hz` offers.

    Doubles or halves the rate until one rate is served and a higher one is not, then takes their geometric mean. After
    the first trial that fails, two rates close to the rate that it served are tried first.
    """

    def __init__(self, rates: RateRange, trials: int) -> None:
        self._rates = rates
        self._left = trials
        self._tried: list[tuple[float, bool]] = []
        self._hints: list[float] | None = None  # None: no rate has failed

    @property
    def failing_hz(self) -> float | None:
        """The lowest rate that was not served."""
        return min((rate for rate, passed in self._tried if not passed), default=None)

    @property
    def best_hz(self) -> float | None:
        """The highest rate that was served, below every rate that was not."""
        failing = self.failing_hz
        rates = (rate for rate, passed in self._tried if passed and (failing is None or rate < failing))
        return max(rates, default=None)

    def add(self, rate_hz: float, passed: bool, served_hz: float | None = None) -> None:
        """Result of a trial. served_hz: frames per second that were served."""
        self._tried.append((rate_hz, passed))
        self._left -= 1
        if not passed and self._hints is None:
            self._hints = [_round(share * served_hz) for share in _HINTS] if served_hz else []

    def next_hz(self) -> float | None:
        """The next rate to try; None: the search has ended."""
        rates, low, high = self._rates, self.best_hz, self.failing_hz
        if self._left <= 0:
            return None
        if low is None and high is None:
            return min(max(_START_HZ, rates.lowest_hz), rates.highest_hz)
        if (high is not None and high <= rates.lowest_hz) or (low is not None and low >= rates.highest_hz):
            return None
        step = 1.0 + PRECISION
        if low is not None and high is not None and high <= low * step:
            return None
        while self._hints:
            hint = self._hints.pop(0)
            above = hint > low * sqrt(step) if low is not None else hint >= rates.lowest_hz
            if above and (high is None or hint < high / sqrt(step)) and hint <= rates.highest_hz:
                return hint
        if high is None:
            assert low is not None
            return min(_round(low * _FACTOR), rates.highest_hz)
        if low is None:
            return max(_round(high / _FACTOR), rates.lowest_hz)
        return _round(sqrt(low * high))


def _round(rate_hz: float) -> float:
    """Four significant digits."""
    return float(f"{rate_hz:.4g}")
