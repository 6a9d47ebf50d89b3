"""Tracks in the node: one tracker for each camera of a DNN with the parameter `track`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import Detections
from multi_dnn_ros.vision.tracking.byte_track import LOW_SCORE, ByteTracker, TrackerSettings


def tracking_problems(config: NodeConfig, kinds: Mapping[str, Sequence[ResultKind]]) -> list[str]:
    """DNNs whose results cannot be tracked, one line each. kinds: kinds of each DNN's results."""
    problems = []
    for dnn, settings in config.dnns.items():
        if not settings.track:
            continue
        if settings.outputs:
            problems.append(f"parameter dnn.{dnn}.track is true; allowed with several results (outputs): false")
        elif not issubclass(kinds[dnn][0].type, Detections):
            name = kinds[dnn][0].name
            problems.append(
                f"parameter dnn.{dnn}.track is true; allowed: false, because its results are {name}, not boxes"
            )
    return problems


def decoder_threshold(settings: DnnConfig, threshold: float) -> float:
    """Minimum score of the boxes that the engine returns. threshold: minimum score of published results.

    A tracked DNN also returns the boxes that only continue tracks.
    """
    return min(threshold, LOW_SCORE) if settings.track else threshold


class Tracks:
    """The trackers of a node. Thread-safe, because results of a DNN on a camera may come from two engine processes
    while one replaces the other.

    cameras: names by DNN. thresholds: minimum scores of published results, by tracked DNN.
    """

    def __init__(
        self, config: NodeConfig, cameras: Mapping[str, Iterable[str]], thresholds: Mapping[str, float]
    ) -> None:
        self._lock = threading.Lock()
        self._trackers = {
            (dnn, camera): ByteTracker(_settings(config.dnns[dnn], thresholds[dnn]))
            for dnn, names in cameras.items()
            if config.dnns[dnn].track
            for camera in names
        }
        self._labels: dict[tuple[str, str], tuple[str, ...]] = {}  # class names of the latest result

    def set_threshold(self, dnn: str, threshold: float) -> None:
        """The score threshold of a DNN has changed."""
        with self._lock:
            for (name, _), tracker in self._trackers.items():
                if name == dnn:
                    tracker.set_high_score(threshold)

    def apply(self, result: Result) -> Result:
        """The result with identities; unchanged if the DNN is not tracked. Raises ValueError for invalid boxes."""
        dnn_camera = result.dnn, result.frame.camera
        tracker = self._trackers.get(dnn_camera)
        if tracker is None or not isinstance(result.output, Detections):
            return result
        with self._lock:
            labels = tuple(result.output.labels)
            if self._labels.setdefault(dnn_camera, labels) != labels:  # another model: the classes mean something else
                self._labels[dnn_camera] = labels
                tracker.end_tracks()
            # Without stamps no time would pass, and lost tracks would never end.
            time_ns = result.frame.stamp_ns or result.frame.received_ns
            return result._replace(output=tracker.update(result.output, time_ns))


def _settings(dnn: DnnConfig, threshold: float) -> TrackerSettings:
    return TrackerSettings(threshold, max_lost_s=dnn.track_max_lost_s)
