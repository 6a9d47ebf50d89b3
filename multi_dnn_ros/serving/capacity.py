"""Whether the configured DNNs fit the device, as reported in the log and on /diagnostics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.planning.fit import Verdict
from multi_dnn_ros.planning.image_sizes import Fit, ObservedSizes, Size

#: Maximum number of reasons on /diagnostics why times are not predicted; each names a layer or a load.
_MAX_DOUBTS = 5


@dataclass(frozen=True)
class Capacity:
    """Whether the DNNs fit the device at the cameras' rates. text, advice: for the log. values: for diagnostics, by
    name with the unit.
    """

    fits: bool
    text: str
    advice: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


class CapacityForImages:
    """The verdict for the image sizes that the cameras deliver; thread-safe.

    fit: None: nothing was measured, so there is no verdict. current: the newest verdict.
    """

    def __init__(self, fit: Fit | None) -> None:
        self._lock = threading.Lock()
        self._sizes = None if fit is None else ObservedSizes(fit)
        self.current = None if fit is None else capacity_of(fit.verdict())

    def observe(self, camera: str, size: Size) -> Capacity | None:
        """Call it with the (width, height) of each image. Returns a new verdict, or None if it has not changed."""
        if self._sizes is None:
            return None
        with self._lock:
            verdict = self._sizes.observe(camera, size)
            if verdict is None:
                return None
            self.current = capacity_of(verdict)
            return self.current


def capacity_of(verdict: Verdict) -> Capacity:
    """The verdict as text and diagnostic values."""
    values: dict[str, str] = {"workers needed (%)": f"{100 * verdict.utilization:.1f}"}
    values.update({f"{dnn} needs (% of a worker)": f"{100 * need:.1f}" for dnn, need in verdict.needs.items()})
    values.update({f"{dnn} at most (Hz)": f"{hz:.2f}" for dnn, hz in verdict.most_hz.items()})
    values.update(
        {f"decoding {camera} (% of a core)": f"{100 * need:.1f}" for camera, need in verdict.decoding.items()}
    )
    values.update({f"advice {number}": text for number, text in enumerate(verdict.advice, start=1)})
    doubts = enumerate(verdict.doubts[:_MAX_DOUBTS], start=1)
    values.update({f"not predicted {number}": text for number, text in doubts})
    return Capacity(verdict.fits, verdict.text, tuple(verdict.advice), values)
