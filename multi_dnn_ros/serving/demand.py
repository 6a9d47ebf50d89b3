"""When the newest image of a camera is worth decoding.

A DNN that is slower than its camera takes one image out of several. Decoding the others would cost CPU time for
nothing, so an image is decoded only if some DNN would begin with it before the next image could be ready. All times are
estimates: a wrong one costs a decode too many or a few milliseconds, never a frame, because a DNN without a frame gets
the newest one at once (:mod:`multi_dnn_ros.serving.camera_decoder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: Samples that each estimate is made of: old ones must not outlive a change of load for long.
_SAMPLES = 16
#: Of the shortest service time lately, what a DNN is expected to take at least. Too much costs freshness: a DNN that is
#: ready before the newest image takes the one that has been waiting for it since its last start. Too little costs
#: decodes.
_SERVICE = 0.875
#: Part of the decode times that the estimate covers.
_DECODE = 0.875
#: On top of the decode time: waking the threads, handing the frame over.
_MARGIN_NS = 2_000_000


class Demand:
    """The estimates of one camera. Times: nanoseconds on the monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self._last_arrival_ns: int | None = None
        self._periods: deque[int] = deque(maxlen=_SAMPLES)
        self._decodes: deque[int] = deque(maxlen=_SAMPLES)
        self._services: dict[str, deque[int]] = {}
        self._last_result_ns: dict[str, int] = {}

    def arrived(self, now_ns: int) -> None:
        """An image of the camera came in."""
        if self._last_arrival_ns is not None:
            self._periods.append(now_ns - self._last_arrival_ns)
        self._last_arrival_ns = now_ns

    def decoded(self, took_ns: int) -> None:
        """Decoding an image took so long."""
        self._decodes.append(took_ns)

    def answered(self, dnn: str, handed_ns: int, finished_ns: int) -> None:
        """A DNN finished a frame that it was handed at `handed_ns`.

        Since then, or since its last result if that came later, it was busy with this frame or, if it serves several
        cameras in turn, with those before it.
        """
        before_ns = self._last_result_ns.get(dnn, 0)
        self._services.setdefault(dnn, deque(maxlen=_SAMPLES)).append(max(0, finished_ns - max(before_ns, handed_ns)))
        self._last_result_ns[dnn] = max(before_ns, finished_ns)

    def due_ns(self, dnn: str, arrived_ns: int, handed_ns: int | None) -> int:
        """From when on the image that arrived last, at `arrived_ns`, is to be decoded for this DNN.

        handed_ns: when the DNN was handed the oldest of its frames that it has not answered; None: it has none, and the
        image is due at once. So it is without history, and if the next image could not be ready before the DNN can
        begin with another one. Otherwise it is due in case that the next image does not come.
        """
        services = self._services.get(dnn)
        if handed_ns is None or not services or not self._periods:
            return arrived_ns
        next_start_ns = max(handed_ns, self._last_result_ns[dnn]) + int(_SERVICE * min(services))
        lead_ns = _MARGIN_NS + (_quantile(self._decodes, _DECODE) if self._decodes else 0)
        if arrived_ns + _quantile(self._periods, 0.5) + lead_ns >= next_start_ns:
            return arrived_ns
        return next_start_ns - lead_ns


def _quantile(samples: Sequence[int], share: float) -> int:
    """Of at least one sample, without interpolation."""
    return sorted(samples)[int(share * len(samples))]
