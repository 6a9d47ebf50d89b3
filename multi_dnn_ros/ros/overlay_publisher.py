"""Publishes results drawn on their image, while someone looks; in a thread of its own, so that no DNN waits for it.

The memory of a frame's image is used again once its last DNN has answered, so the image of a picture that will be drawn
is copied before that.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.ros.result_messages import image_message
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.result_kind import Layer, ResultKind

#: Frames of one camera that some DNN has not answered yet; the oldest is given up for the next.
_OPEN_FRAMES = 8
#: A DNN that dropped a frame is shown with what it last found, for so long after it was found.
_HELD_NS = 1_000_000_000


@dataclass(frozen=True)
class _Found:
    """A DNN's newest answer. received_ns: when its frame arrived. found_ns: when it was there. size: (H, W)."""

    received_ns: int
    found_ns: int
    size: tuple[int, ...]
    layer: Layer


@dataclass
class _Picture:
    """What has come in for one frame. waiting: DNNs that have neither answered nor dropped it. image: a copy."""

    frame: Frame
    waiting: set[str]
    layers: dict[str, Layer] = field(default_factory=dict)
    image: npt.NDArray[np.uint8] | None = None


class OverlayPublisher:
    """Collects the results of a frame until every DNN of its camera has answered or dropped it, then draws.

    publishers: by camera. dnns: the names of each camera's DNNs. kinds: of each DNN's results. report: gets a line when
    drawing fails.
    Only the newest complete frame of a camera is drawn, and none that is older than one before it: what a slow DNN
    found on a frame that the others have left behind is shown on the next ones.
    """

    def __init__(
        self,
        publishers: Mapping[str, Any],
        dnns: Mapping[str, tuple[str, ...]],
        kinds: Mapping[str, ResultKind],
        report: Callable[[str], None],
    ) -> None:
        self._publishers = publishers
        self._kinds = kinds
        self._dnns = dnns
        self._report = report
        self._open: dict[str, OrderedDict[Frame, _Picture]] = {camera: OrderedDict() for camera in publishers}
        self._latest: dict[str, dict[str, _Found]] = {camera: {} for camera in publishers}
        self._newest_ns = dict.fromkeys(publishers, 0)  # arrival of the newest complete frame
        self._ready: dict[str, _Picture] = {}
        self._wake = threading.Condition()
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="overlay", daemon=True)
        self.thread.start()

    def add(self, result: Result) -> None:
        """A DNN's answer, as long as the frame's image is there; drawing happens elsewhere."""
        layer = Layer(result.dnn, self._kinds[result.dnn], result.output, result.timing.end_to_end_ns / 1e6)
        found = _Found(result.frame.received_ns, result.timing.finished_ns, result.frame.image().shape[:2], layer)
        self._answer(result.dnn, result.frame, found)

    def skip(self, drop: Drop) -> None:
        """A DNN gives no answer for this frame. Its image is there, if any DNN has given one."""
        self._answer(drop.dnn, drop.frame, None)

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False when it did not in time."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _answer(self, dnn: str, frame: Frame, found: _Found | None) -> None:
        camera = frame.camera
        with self._wake:
            if self._publishers[camera].get_subscription_count() == 0:
                self._open[camera].clear()
                self._latest[camera].clear()
                return
            if found is not None:
                self._latest[camera][dnn] = found
            if frame.received_ns < self._newest_ns[camera]:
                return
            pictures = self._open[camera]
            picture = pictures.get(frame)
            if picture is None:
                picture = pictures[frame] = _Picture(frame, set(self._dnns[camera]))
                if len(pictures) > _OPEN_FRAMES:
                    pictures.popitem(last=False)
            picture.waiting.discard(dnn)
            if found is not None:
                picture.layers[dnn] = found.layer
            if picture.waiting:
                return
            del pictures[frame]
            if not picture.layers:
                return
            self._newest_ns[camera] = frame.received_ns
            for older in [other for other in pictures if other.received_ns < frame.received_ns]:
                del pictures[older]
        picture.image = frame.image().copy()  # without the lock: other cameras' DNNs answer meanwhile
        with self._wake:
            if frame.received_ns >= self._newest_ns[camera]:  # else another thread was faster with a newer one
                self._ready[camera] = picture
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ready or self._ended)
                if self._ended:
                    return
                camera = next(iter(self._ready))  # cameras take turns
                picture = self._ready.pop(camera)
                layers = [*picture.layers.values(), *self._held(camera, picture)]
            try:
                assert picture.image is not None
                pixels = draw(picture.image, layers)
                self._publishers[camera].publish(image_message(pixels, "rgb8", picture.frame.context))
            except Exception as error:  # a picture that cannot be drawn must not end the pictures
                self._report(f"overlay of camera {camera}: {type(error).__name__}: {error}")
            del picture, layers  # nothing of a frame may live on while this thread waits

    def _held(self, camera: str, picture: _Picture) -> list[Layer]:
        """What the DNNs that dropped this frame found last; without it their boxes would flicker."""
        assert picture.image is not None
        frame, size = picture.frame, picture.image.shape[:2]
        return [
            replace(found.layer, stale=True)
            for dnn, found in self._latest[camera].items()
            if dnn not in picture.layers
            and found.size == size
            and found.received_ns <= frame.received_ns <= found.found_ns + _HELD_NS
        ]
