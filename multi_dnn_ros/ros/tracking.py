"""Tracks in the node: one tracker for each camera of a DNN with the parameter `track`."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.byte_track import ByteTracker, TrackerSettings
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import Detections


def tracking_problems(config: NodeConfig, kinds: Mapping[str, Mapping[str, ResultKind]]) -> list[str]:
    """DNNs whose results cannot be tracked, one line each. kinds: of each DNN's results, by the name of the output."""
    problems = []
    for dnn in (name for name, settings in config.dnns.items() if settings.track):
        refusal = ""
        if config.dnns[dnn].outputs:
            refusal = "allowed with several results (outputs): false"
        elif not issubclass(kinds[dnn][""].type, Detections):
            refusal = f"allowed: false, because its results are {kinds[dnn][''].name}, not boxes"
        if refusal:
            problems.append(f"parameter dnn.{dnn}.track is true; {refusal}")
    return problems


class Tracks:
    """One tracker per tracked DNN and camera. Thread-safe, because the results of a DNN on a camera may come from two
    engine processes while one replaces the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trackers: dict[tuple[str, str], ByteTracker] = {}
        self._labels: dict[tuple[str, str], tuple[str, ...]] = {}  # class names of the latest result

    def add(self, dnn: str, camera: str, threshold: float) -> None:
        """Track a DNN on a camera. threshold: minimum score of published results."""
        self._trackers[dnn, camera] = ByteTracker(TrackerSettings(threshold))

    def set_threshold(self, dnn: str, threshold: float) -> None:
        """The score threshold of a DNN has changed."""
        with self._lock:
            for (name, _), tracker in self._trackers.items():
                if name == dnn:
                    tracker.set_high_score(threshold)

    def apply(self, result: Result) -> Result:
        """The result with identities; unchanged if the DNN is not tracked. Raises ValueError for invalid boxes."""
        key = result.dnn, result.frame.camera
        tracker = self._trackers.get(key)
        if tracker is None or not isinstance(result.output, Detections):
            return result
        with self._lock:
            labels = tuple(result.output.labels)
            if self._labels.setdefault(key, labels) != labels:  # another model: the classes mean something else
                self._labels[key] = labels
                tracker.end_tracks()
            # Without stamps no time would pass, and lost tracks would never end.
            time_ns = result.frame.stamp_ns or result.frame.received_ns
            return result._replace(output=tracker.update(result.output, time_ns))
