"""Warns about results that take long to publish: the thread that publishes them reads the results of all DNNs."""

from __future__ import annotations

from collections.abc import Callable

from multi_dnn_ros.common.log_throttle import LogThrottle

#: Longest time for building and publishing a message without a warning.
LIMIT_NS = 100_000_000
_PERIOD_S = 60.0


class SlowPublishing:
    """Warns at most once per minute and DNN. Thread-safe.

    warn: called with the text. clock: nanoseconds, monotonic.
    """

    def __init__(self, warn: Callable[[str], object], clock: Callable[[], int]) -> None:
        self._warn = warn
        self._throttle = LogThrottle(_PERIOD_S, lambda: clock() / 1e9)

    def add(self, dnn: str, camera: str, topic: str, elapsed_ns: int) -> None:
        """A message of a DNN took this time. topic: below ``~/``."""
        if elapsed_ns <= LIMIT_NS:
            return
        more = self._throttle.passes(dnn)
        if more is not None:
            self._warn(
                f"DNN {dnn} on camera {camera}: building and publishing a message on ~/{topic} took "
                f"{elapsed_ns / 1e6:.0f} ms (limit {LIMIT_NS / 1e6:.0f} ms): results of other DNNs wait meanwhile{more}"
            )
