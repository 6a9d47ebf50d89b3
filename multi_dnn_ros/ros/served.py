"""What the node serves while it is configured, and how changed parameters of DNNs take effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.ros.serving_session import ServingSession
from multi_dnn_ros.ros.tracking import Tracks, decoder_threshold
from multi_dnn_ros.serving.descriptions import Changes, DnnDescription, EngineDescription
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.results import result_name


@dataclass
class Served:
    """What the node serves; changed in the executor's thread only.

    config: has the values that are served. description: describes the engine. host: the configured host. outputs:
    publishers of the results.
    """

    config: NodeConfig
    description: EngineDescription
    host: Host
    outputs: ResultPublishers

    def threshold(self, dnn: str, output: str = "") -> float:
        """The score threshold that a result is served with; 0 in the parameter selects that of the model."""
        settings = self.config.dnns[dnn]
        given = settings.outputs[output].score_threshold if output else settings.score_threshold
        return given or self.description.dnns[dnn].results[output].own_threshold

    def new_tracks(self) -> Tracks:
        """New trackers, without identities yet."""
        return Tracks(
            self.config,
            {name: dnn.cameras for name, dnn in self.description.dnns.items()},
            {name: self.threshold(name) for name, settings in self.config.dnns.items() if settings.track},
        )

    def set_tracking_thresholds(self) -> None:
        """Make the engine also return the boxes that only continue tracks."""
        for dnn in self.config.dnns:
            self._set_tracking_threshold(dnn, None)

    def publish_labels(self) -> None:
        """Publish class names and thresholds of all results; to be called after activation."""
        for dnn, described in self.description.dnns.items():
            for output in described.results:
                self._publish_labels(dnn, output)

    def update(self, dnn: str, name: str, value: Any, session: ServingSession | None) -> None:
        """Apply a changed runtime parameter. name: without `dnn.<dnn>.`. session: None while the node is inactive."""
        output, field = assign(self.config.dnns[dnn], name, value)
        if self.config.dnns[dnn].track and name == "score_threshold":
            self._set_tracking_threshold(dnn, session)
        else:
            self.host.update(dnn, name, value)
        if session is not None:
            session.update(dnn, name, value)
            if field == "score_threshold" and output in self.description.dnns[dnn].results:
                self._publish_labels(dnn, output)

    def rates(self) -> dict[str, dict[str, float]]:
        """Images per second by DNN and camera, at the cameras' rates, which `max_rate_hz` may limit."""
        config = self.config
        return {
            name: {camera: config.dnns[name].limited_hz(config.cameras[camera].rate_hz) for camera in dnn.cameras}
            for name, dnn in self.description.dnns.items()
        }

    def adopt(self, changes: Changes, dnns: Mapping[str, DnnDescription], session: ServingSession | None) -> None:
        """A swap has replaced the settings of DNNs. dnns: their new descriptions. session: as for :meth:`update`."""
        described = {**self.description.dnns, **{dnn: dnns[dnn] for dnn in changes}}
        self.description = replace(self.description, dnns=described, fits={})
        for dnn, values in changes.items():
            for name, value in values.items():
                assign(self.config.dnns[dnn], name, value)
            self._set_tracking_threshold(dnn, session)
            for output, result in dnns[dnn].results.items():
                self.outputs.set_labels(result_name(dnn, output), result.labels)
                if session is not None:
                    self._publish_labels(dnn, output)

    def _set_tracking_threshold(self, dnn: str, session: ServingSession | None) -> None:
        """Pass the threshold of a tracked DNN to engine and tracker; no effect for other DNNs."""
        settings = self.config.dnns[dnn]
        if settings.track:
            threshold = self.threshold(dnn)
            self.host.update(dnn, "score_threshold", decoder_threshold(settings, threshold))
            if session is not None:
                session.set_threshold(dnn, threshold)

    def _publish_labels(self, dnn: str, output: str) -> None:
        self.outputs.publish_labels(result_name(dnn, output), self.threshold(dnn, output))
