"""Decides which arriving images a DNN gets, by the runtime parameters `enable` and `max_rate_hz`.

An image that is refused for a DNN counts as offered to it and is dropped at once with a separate reason, so the counts
of a DNN on a camera always add up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.engine.task import DropReason

#: How much earlier than due an image is accepted, as a share of the period. Without this tolerance, jitter of a camera
#: that is as fast as the limit would make every second image come too early.
_TOLERANCE = 0.25

#: Why an image is refused: the reason of the drop, and its message.
Refusal = tuple[DropReason, str]
SWITCHED_OFF_MESSAGE = "switched off (parameter enable)"


class RateLimit:
    """Limits events to a rate. Not thread-safe. rate_hz: more than 0.

    The time at which the next event is due advances by whole periods, so neither the tolerance nor the phase of the
    events changes the mean rate: at most ``1 + (T + 1.25 P) / P`` events are accepted within any time T, P being the
    period. After a pause the sequence starts again, without a burst.
    """

    def __init__(self, rate_hz: float) -> None:
        self._period_ns = round(min(1e9 / rate_hz, 1e18))  # more than 30 years
        self._due_ns: int | None = None

    def accept(self, now_ns: int) -> bool:
        """Whether an event at this time is accepted. now_ns: monotonic."""
        if self._due_ns is not None and now_ns < self._due_ns - round(_TOLERANCE * self._period_ns):
            return False
        if self._due_ns is None or now_ns - self._due_ns >= self._period_ns:
            self._due_ns = now_ns
        self._due_ns += self._period_ns
        return True


@dataclass
class _DnnAdmission:
    """The admission of images to one DNN. limits: by camera. max_rate_hz: 0: no limit."""

    enabled: bool = True
    max_rate_hz: float = 0.0
    limits: dict[str, RateLimit] = field(default_factory=dict)


class Admission:
    """Thread-safe. enabled, max_rates_hz: initial values by DNN; a DNN without one is enabled and unlimited.

    max_rate_hz limits the images of each camera separately, by their time of arrival, because stamps may jump.
    """

    def __init__(self, enabled: Mapping[str, bool] = {}, max_rates_hz: Mapping[str, float] = {}) -> None:
        self._lock = threading.Lock()
        self._dnns: dict[str, _DnnAdmission] = {}
        for dnn, value in enabled.items():
            self._of(dnn).enabled = value
        for dnn, rate_hz in max_rates_hz.items():
            self._of(dnn).max_rate_hz = rate_hz

    def set_enabled(self, dnn: str, enabled: bool) -> None:
        """Set whether the DNN gets images from now on."""
        with self._lock:
            self._of(dnn).enabled = enabled
            self._of(dnn).limits.clear()

    def set_max_rate(self, dnn: str, rate_hz: float) -> None:
        """Set the maximum images per second of each camera from now on; 0: no limit."""
        with self._lock:
            self._of(dnn).max_rate_hz = rate_hz
            self._of(dnn).limits.clear()

    def is_enabled(self, dnn: str) -> bool:
        """Whether the parameter `enable` of the DNN is true."""
        with self._lock:
            return dnn not in self._dnns or self._dnns[dnn].enabled

    def refusals(self, camera: str, dnns: Iterable[str], arrived_ns: int) -> dict[str, Refusal]:
        """Which of the DNNs do not get an image of the camera that has just arrived, and why. Call once per image."""
        found: dict[str, Refusal] = {}
        with self._lock:
            for dnn in dnns:
                admission = self._dnns.get(dnn)
                if admission is None:
                    continue
                if not admission.enabled:
                    found[dnn] = DropReason.SWITCHED_OFF, SWITCHED_OFF_MESSAGE
                elif admission.max_rate_hz:
                    limit = admission.limits.get(camera)
                    if limit is None:
                        limit = admission.limits[camera] = RateLimit(admission.max_rate_hz)
                    if not limit.accept(arrived_ns):
                        found[dnn] = DropReason.RATE_LIMITED, f"max_rate_hz is {admission.max_rate_hz:g}"
        return found

    def _of(self, dnn: str) -> _DnnAdmission:
        return self._dnns.setdefault(dnn, _DnnAdmission())
