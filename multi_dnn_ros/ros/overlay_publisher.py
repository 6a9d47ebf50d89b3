"""Publishes each image with the results drawn on it, raw and as JPEG, while the topic has a subscription.

Drawing runs in a thread of its own, so that no DNN waits for it. The memory of a frame's image is reused once its last
DNN has finished, so the image is copied before that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.image_decoding import RgbImage
from multi_dnn_ros.vision.result_kind import Layer
from multi_dnn_ros.vision.results import results_by_name

#: Maximum number of unfinished frames per camera; if there are more, the oldest is not drawn.
_MAX_OPEN_FRAMES = 8
#: Minimum time between two log lines.
_LOG_PERIOD_S = 5.0
Layers = tuple[Layer, ...]


class OverlayPublisher:
    """Collects the results of a frame until every DNN of its camera has published or dropped it, then draws.

    dnns: number of each camera's DNNs. log: the node's logger. Only the newest complete frame of a camera is drawn.
    """

    def __init__(self, outputs: ResultPublishers, dnns: Mapping[str, int], log: Any) -> None:
        self._outputs, self._dnns, self._log = outputs, dnns, log
        #: By camera, the unfinished frames, each with the layers of the DNNs that have finished it; empty: dropped.
        self._open: dict[str, dict[Frame, dict[str, Layers]]] = {camera: {} for camera in dnns}
        self._newest_ns = dict.fromkeys(dnns, 0)  # arrival time of the newest complete frame
        self._ready: dict[str, tuple[Frame, RgbImage, list[Layer]]] = {}
        self._wake = threading.Condition()
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="overlay", daemon=True)
        self.thread.start()

    def add(self, result: Result) -> None:
        """Add a result; to be called before the memory of the frame's image is released. Does not draw."""
        if self._is_watched(result.frame.camera):
            latency_ms = result.timing.arrival_to_result_ns / 1e6
            found = results_by_name(result.dnn, result.output).items()
            layers = tuple(Layer(name, self._outputs.kinds[name], output, latency_ms) for name, output in found)
            self._finish(result.dnn, result.frame, layers)

    def skip(self, drop: Drop) -> None:
        """A DNN has dropped a frame."""
        if self._is_watched(drop.frame.camera):
            self._finish(drop.dnn, drop.frame, ())

    def stop(self, timeout_s: float) -> None:
        """End the thread, which may still be alive after the timeout."""
        with self._wake:
            self._ended = True
            self._wake.notify()
        self.thread.join(timeout_s)

    def _is_watched(self, camera: str) -> bool:
        """Whether the overlay has a subscription; otherwise, forget its unfinished frames."""
        is_wanted = self._outputs.is_overlay_wanted(camera)
        if not is_wanted and self._open[camera]:
            with self._wake:
                self._open[camera].clear()
        return is_wanted

    def _finish(self, dnn: str, frame: Frame, layers: Layers) -> None:
        camera = frame.camera
        with self._wake:
            frames = self._open[camera]
            if frame.received_ns < self._newest_ns[camera]:
                return
            found = frames.setdefault(frame, {})
            found[dnn] = layers
            if len(frames) > _MAX_OPEN_FRAMES:
                del frames[next(iter(frames))]
            if len(found) < self._dnns[camera]:
                return
            frames.pop(frame, None)
            if not any(found.values()):
                return
            self._newest_ns[camera] = frame.received_ns
            self._open[camera] = {it: each for it, each in frames.items() if it.received_ns > frame.received_ns}
            drawn = [layer for each in found.values() for layer in each]
        image = frame.image.copy()  # without the lock, which the DNNs of other cameras need
        with self._wake:
            if frame.received_ns >= self._newest_ns[camera]:  # otherwise another thread has completed a newer frame
                self._ready[camera] = frame, image, drawn
                self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._ready or self._ended)
                if self._ended:
                    return
                camera = next(iter(self._ready))  # the dict is ordered, so cameras alternate
                frame, image, layers = self._ready.pop(camera)
            try:
                pixels = draw(image, layers, partial(self._report, f"the overlay of camera {camera}"))
                self._outputs.publish_overlay(camera, pixels, frame.context)
            except (Exception, SystemExit) as error:  # one failed overlay must not end the thread
                self._report(f"an overlay of camera {camera} was not published: {type(error).__name__}", error)
            del frame, image, layers  # keep no reference to the frame while waiting

    def _report(self, what: str, problem: str | BaseException) -> None:
        self._log.warning(f"{what}: {problem}", throttle_duration_sec=_LOG_PERIOD_S)
