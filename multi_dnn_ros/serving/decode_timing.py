"""When to decode the newest image of a camera.

A DNN that is slower than its camera processes one image out of several. Decoding the others would waste CPU time, so an
image is decoded only if a DNN would start on it before the next image could be ready. All times are estimates. A wrong
estimate costs an unnecessary decode or a few milliseconds, but never a frame: a DNN without a frame gets the newest one
at once (:mod:`multi_dnn_ros.serving.camera_decoder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

#: Samples per estimate; few, so that the estimates follow a change of load.
_SAMPLES = 16
#: Expected minimum service time of a DNN, as a share of the shortest sample. If it is too large, results are older: a
#: DNN that is idle before the newest image is decoded starts with an older one. If it is too small, more images are
#: decoded than needed.
_SERVICE_SHARE = 0.875
#: Quantile of the decode times that is used as the estimate.
_DECODE_QUANTILE = 0.875
#: Added to the decode time: waking the threads, handing the frame over.
_MARGIN_NS = 2_000_000


class DecodeTiming:
    """The estimates for one camera. Times: nanoseconds on the monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self._last_arrival_ns: int | None = None
        self._periods: deque[int] = deque(maxlen=_SAMPLES)
        self._decodes: deque[int] = deque(maxlen=_SAMPLES)
        self._services: dict[str, deque[int]] = {}
        self._last_result_ns: dict[str, int] = {}

    def arrived(self, now_ns: int) -> None:
        """An image of the camera arrived."""
        if self._last_arrival_ns is not None:
            self._periods.append(now_ns - self._last_arrival_ns)
        self._last_arrival_ns = now_ns

    def decoded(self, took_ns: int) -> None:
        """Decoding an image took `took_ns`."""
        self._decodes.append(took_ns)

    def answered(self, dnn: str, handed_ns: int, finished_ns: int) -> None:
        """A DNN finished a frame that was handed to the engine at `handed_ns`.

        Its service time counts from then, or from its previous result if that came later. It includes frames of other
        cameras that the DNN processed in between.
        """
        before_ns = self._last_result_ns.get(dnn, 0)
        self._services.setdefault(dnn, deque(maxlen=_SAMPLES)).append(max(0, finished_ns - max(before_ns, handed_ns)))
        self._last_result_ns[dnn] = max(before_ns, finished_ns)

    def due_ns(self, dnn: str, arrived_ns: int, handed_ns: int | None) -> int:
        """When to decode the newest image, which arrived at `arrived_ns`, for this DNN.

        It is decoded at once if the DNN has no frame, if there are no samples yet, or if the next image could not be
        ready before the DNN needs one. Otherwise it is decoded just in time for the DNN, in case the next image does
        not arrive.

        handed_ns: when the oldest unanswered frame of the DNN was handed to the engine; None: it has no frame.
        """
        services = self._services.get(dnn)
        if handed_ns is None or not services or not self._periods:
            return arrived_ns
        next_start_ns = max(handed_ns, self._last_result_ns[dnn]) + int(_SERVICE_SHARE * min(services))
        lead_ns = _MARGIN_NS + (_quantile(self._decodes, _DECODE_QUANTILE) if self._decodes else 0)
        if arrived_ns + _quantile(self._periods, 0.5) + lead_ns >= next_start_ns:
            return arrived_ns
        return next_start_ns - lead_ns


def _quantile(samples: Sequence[int], share: float) -> int:
    """The quantile of one or more samples, without interpolation."""
    return sorted(samples)[int(share * len(samples))]
