"""Publishes each image with the results drawn on it, raw and as JPEG, while the topic has a subscription.

Drawing runs in a thread of its own, so that no DNN waits for it. The memory of a frame's image is reused once its last
DNN has finished, so the image is copied before that; a JPEG file is decoded when it is drawn.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Header

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.ros.result_messages import image_message, jpeg_message
from multi_dnn_ros.vision.drawing import DrawFailure, draw
from multi_dnn_ros.vision.jpeg_file import FrameImage, pixels_of
from multi_dnn_ros.vision.result_kind import Layer, ResultKind
from multi_dnn_ros.vision.results import results_by_name

#: Maximum number of unfinished frames per camera; if there are more, the oldest is not drawn.
_MAX_OPEN_FRAMES = 8
#: For this time, the last result of a DNN is also drawn on frames that the DNN has dropped.
_HOLD_NS = 1_000_000_000


@dataclass(frozen=True)
class _LastResult:
    """A DNN's newest results. received_ns: arrival of the frame. finished_ns: when they were ready. size: (H, W)."""

    received_ns: int
    finished_ns: int
    size: tuple[int, ...]
    layers: tuple[Layer, ...]


@dataclass
class _Overlay:
    """One frame and its results so far. waiting: DNNs that have not finished it. image: a copy, once all have."""

    frame: Frame
    waiting: set[str]
    layers: dict[str, tuple[Layer, ...]] = field(default_factory=dict)
    image: FrameImage | None = None


@dataclass(frozen=True)
class OverlayTopics:
    """The publishers of one camera's overlay. compressed: publishes CompressedImage."""

    raw: Any
    compressed: Any

    @property
    def subscribed(self) -> bool:
        """Whether one of the topics has a subscription."""
        return bool(self.raw.get_subscription_count() or self.compressed.get_subscription_count())

    def publish(self, pixels: npt.NDArray[np.uint8], header: Header) -> None:
        """Publish (H, W, 3) uint8 RGB on the topics that have a subscription."""
        if self.raw.get_subscription_count():
            self.raw.publish(image_message(pixels, "rgb8", header))
        if self.compressed.get_subscription_count():
            self.compressed.publish(jpeg_message(pixels, header))


class OverlayPublisher:
    """Collects the results of a frame until every DNN of its camera has published or dropped it, then draws.

    publishers: topics by camera. dnns: names of each camera's DNNs. kinds: kind of each result, by the result's name.
    report: called with a message when an overlay cannot be published. report_kind: called with the camera when a result
    kind cannot be drawn; the overlay shows the others.
    Only the newest complete frame of a camera is drawn, and never a frame older than the one drawn last. The result of
    a slow DNN for an older frame is drawn on the next frames.
    """

    def __init__(
        self,
        publishers: Mapping[str, OverlayTopics],
        dnns: Mapping[str, tuple[str, ...]],
        kinds: Mapping[str, ResultKind],
        report: Callable[[str], None],
        report_kind: Callable[[str, DrawFailure], None],
    ) -> None:
        self._publishers = publishers
        self._kinds = kinds
        self._dnns = dnns
        self._report = report
        self._report_kind = report_kind
        self._open: dict[str, OrderedDict[Frame, _Overlay]] = {camera: OrderedDict() for camera in publishers}
        self._latest: dict[str, dict[str, _LastResult]] = {camera: {} for camera in publishers}
        self._newest_ns = dict.fromkeys(publishers, 0)  # arrival time of the newest complete frame
        self._ready: dict[str, _Overlay] = {}
        self._wake = threading.Condition()
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="overlay", daemon=True)
        self.thread.start()

    def add(self, result: Result) -> None:
        """Add a result; to be called before the memory of the frame's image is released. Does not draw."""
        if not self._is_watched(result.frame.camera):
            return
        latency_ms = result.timing.arrival_to_result_ns / 1e6
        layers = tuple(
            Layer(name, self._kinds[name], output, latency_ms)
            for name, output in results_by_name(result.dnn, result.output).items()
        )
        last = _LastResult(result.frame.received_ns, result.timing.finished_ns, result.frame.size, layers)
        self._finish(result.dnn, result.frame, last)

    def skip(self, drop: Drop) -> None:
        """A DNN has dropped a frame."""
        if self._is_watched(drop.frame.camera):
            self._finish(drop.dnn, drop.frame, None)

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if it did not end in time."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _is_watched(self, camera: str) -> bool:
        """Whether the overlay has a subscription; otherwise, forget its unfinished frames and last results."""
        if self._publishers[camera].subscribed:
            return True
        if self._open[camera] or self._latest[camera]:
            with self._wake:
                self._open[camera].clear()
                self._latest[camera].clear()
        return False

    def _finish(self, dnn: str, frame: Frame, last: _LastResult | None) -> None:
        camera = frame.camera
        with self._wake:
            if last is not None:
                self._latest[camera][dnn] = last
            if frame.received_ns < self._newest_ns[camera]:
                return
            overlays = self._open[camera]
            overlay = overlays.get(frame)
            if overlay is None:
                overlay = overlays[frame] = _Overlay(frame, set(self._dnns[camera]))
                if len(overlays) > _MAX_OPEN_FRAMES:
                    overlays.popitem(last=False)
            overlay.waiting.discard(dnn)
            if last is not None:
                overlay.layers[dnn] = last.layers
            if overlay.waiting:
                return
            del overlays[frame]
            if not overlay.layers:
                return
            self._newest_ns[camera] = frame.received_ns
            for older in [other for other in overlays if other.received_ns < frame.received_ns]:
                del overlays[older]
        overlay.image = frame.source.copy()  # without the lock, which the DNNs of other cameras need
        with self._wake:
            if frame.received_ns >= self._newest_ns[camera]:  # otherwise another thread has completed a newer frame
                self._ready[camera] = overlay
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ready or self._ended)
                if self._ended:
                    return
                camera = next(iter(self._ready))  # the dict is ordered, so cameras alternate
                overlay = self._ready.pop(camera)
                layers = [*chain(*overlay.layers.values()), *self._held(camera, overlay)]
            try:
                assert overlay.image is not None
                pixels = draw(pixels_of(overlay.image), layers, partial(self._report_kind, camera))
                self._publishers[camera].publish(pixels, overlay.frame.context)
            except (Exception, SystemExit) as error:  # one failed overlay must not end the thread
                self._report(
                    f"the overlay of camera {camera} was not published for one frame: {type(error).__name__}: {error}"
                )
            del overlay, layers  # keep no reference to the frame while waiting

    def _held(self, camera: str, overlay: _Overlay) -> list[Layer]:
        """The last results of the DNNs that dropped this frame; without them their boxes would flicker."""
        frame, size = overlay.frame, overlay.frame.size
        return [
            replace(layer, stale=True)
            for dnn, last in self._latest[camera].items()
            if dnn not in overlay.layers
            and last.size == size
            and last.received_ns <= frame.received_ns <= last.finished_ns + _HOLD_NS
            for layer in last.layers
        ]
