"""The DNNs of a configured node: settings, publishers and services; while it is active, the way of its frames."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.task import Drop, DropEffect, DropReason, Result
from multi_dnn_ros.ros.camera_input import CameraInput
from multi_dnn_ros.ros.diagnostics import ERROR, OK, WARN, Status, dnn_level, dnn_values
from multi_dnn_ros.ros.ground import Ground
from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.descriptions import Changes, DnnDescription, EngineDescription, capacity_of_devices
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import SWITCHED_OFF_MESSAGE, DnnSettings, Ledger
from multi_dnn_ros.serving.statistics import DnnCameraStatistics
from multi_dnn_ros.settings.flat_parameters import assign
from multi_dnn_ros.settings.forms import ParameterError
from multi_dnn_ros.settings.schema import STOP_TIMEOUT_S, NodeConfig
from multi_dnn_ros.vision.byte_track import LOW_SCORE, ByteTracker, TrackerSettings
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind
from multi_dnn_ros.vision.results import Detections, result_name

#: Period of checking the publishers of the cameras.
_CHECK_PERIOD_S = 0.5
#: Minimum time between two log lines about dropped frames of a DNN or bad images of a camera.
_LOG_PERIOD_S = 5.0
#: Maximum time for the images being decoded, and minimum time for the overlay in progress, when the node stops serving.
_DECODERS_STOP_S, _MIN_OVERLAY_STOP_S = 0.4, 0.5


class ServedDnns:
    """config: has the values that are served. host: configured with it. description: of its engines.

    Raises ParameterError: `track` is set for a DNN without boxes. Raises ExtensionError: a result cannot be published.
    """

    def __init__(self, node: LifecycleNode, config: NodeConfig, host: Host, description: EngineDescription) -> None:
        self._node, self._log = node, node.get_logger()
        self.config = config
        self.host = host
        self.description = description
        self.active = False
        RESULT_KINDS.usable()
        #: By DNN and camera: rclpy throttles the lines of each logger separately.
        self._logs = {name: self._log.get_child(name) for name in (*config.cameras, *config.dnns)}
        kinds = {
            name: {output: RESULT_KINDS.get(it.result_kind) for output, it in dnn.results.items()}
            for name, dnn in description.dnns.items()
        }
        if problems := [problem for dnn in config.dnns if (problem := _tracking_problem(dnn, config, kinds[dnn]))]:
            raise ParameterError(problems)
        self._outputs = ResultPublishers(node, {name: dnn.cameras for name, dnn in description.dnns.items()}, kinds)
        self._services = [
            node.create_service(SetBool, f"~/{dnn}/enable", partial(self._enable, f"dnn.{dnn}.enable"))
            for dnn in description.dnns
        ]
        self._tracks: dict[tuple[str, str], _Tracks] = {}
        for dnn in config.dnns:
            self._update_thresholds(dnn)
        self._capacity = capacity_of_devices(description.fits)
        if self._capacity is not None:
            text = "; ".join((f"capacity: {self._capacity.text}", *self._capacity.advice))
            if self._capacity.fits:  # two calls, because rclpy allows only one level per calling line
                self._log.info(text)
            else:
                self._log.warning(text)

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose images a DNN processes."""
        return tuple(dict.fromkeys(camera for dnn in self.description.dnns.values() for camera in dnn.cameras))

    def close(self) -> None:
        """Destroy the publishers and services of an inactive node."""
        self._outputs.close()
        for service in self._services:
            self._node.destroy_service(service)

    # -- from activation to deactivation

    def start(self) -> None:
        """Serve frames. To be called when the publishers are active, because inactive ones drop messages."""
        config, dnns = self.config, self.description.dnns
        self._last: dict[tuple[str, str], DnnCameraStatistics] = {}  # of the last diagnostics
        self._tracks = {
            (name, camera): _Tracks(self._threshold(name))
            for name, dnn in dnns.items() if config.dnns[name].track
            for camera in dnn.cameras
        }  # fmt: skip
        settings = {dnn: self._ledger_settings(dnn) for dnn in dnns}
        callbacks = Callbacks(self._on_result, self._on_drop, self._on_failure)
        self._ledger = ledger = Ledger(settings, callbacks, on_answered=lambda camera: self._decoders[camera].wake())
        numbers = {camera: len(ledger.dnns_of(camera)) for camera in self.cameras}
        self._overlay = OverlayPublisher(self._outputs, numbers, self._log)
        self._decoders = {
            camera: CameraDecoder(camera, self.host, ledger, partial(self._on_bad_image, camera))
            for camera in self.cameras
        }
        self._inputs: dict[str, CameraInput] = {}
        self._ground = Ground(self._node, config, self._outputs.on_ground)
        # On the steady clock, because simulated time may be paused.
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._check_timer = self._node.create_timer(_CHECK_PERIOD_S, self._check_cameras, clock=clock)
        self.active = True
        self.host.start(ledger)
        # Subscribe last, when everything that processes a frame exists, and only to cameras that a DNN processes.
        for camera, decoder in self._decoders.items():
            decoder.start()
            self._inputs[camera] = CameraInput(self._node, camera, config.cameras[camera], decoder.arrived)
        for camera in config.cameras.keys() - self._decoders.keys():
            self._log.warning(f"camera {camera}: no DNN processes its images (parameters dnn.<dnn>.cameras)")
        for dnn, described in dnns.items():
            self._publish_labels(dnn, *described.results)

    def stop(self) -> list[str]:
        """Finish the frames in progress, and end all threads; returns the names of threads that hang."""
        if not self.active:
            return []
        self.active = False
        end = time.monotonic() + STOP_TIMEOUT_S
        self._node.destroy_timer(self._check_timer)
        for source in self._inputs.values():
            source.close()
        self._ground.close()
        decoders_end = time.monotonic() + _DECODERS_STOP_S
        for decoder in self._decoders.values():
            decoder.close(max(decoders_end - time.monotonic(), 0.0))
        hanging = self.host.stop(max(end - time.monotonic(), 0.0))
        self._ledger.drop_unanswered(DropReason.SHUTDOWN, "not answered before the engine stopped")
        self._overlay.stop(max(end - time.monotonic(), _MIN_OVERLAY_STOP_S))
        for (dnn, camera), figures in self._ledger.statistics().items():
            lost = ", ".join(f"{count} {reason.value}" for reason, count in figures.dropped.items() if count)
            text = f"{dnn} on {camera}: {figures.published} of {figures.offered} frames published"
            self._log.info(text + (f"; dropped: {lost}" if lost else ""))
        threads = (*self._decoders.values(), self._overlay.thread)
        return [*hanging, *(thread.name for thread in threads if thread.is_alive())]

    def _check_cameras(self) -> None:
        for source in list(self._inputs.values()):
            source.check_publishers()
        self._ground.update(self._outputs.wanted_on_ground())

    # -- parameters

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Apply a changed runtime parameter. name: without `dnn.<dnn>.`."""
        output, field = assign(self.config.dnns[dnn], name, value)
        if not (name == "score_threshold" and self.config.dnns[dnn].track):
            self.host.update(dnn, name, value)
        if field == "score_threshold":
            self._update_thresholds(dnn)
            if output in self.description.dnns[dnn].results:
                self._publish_labels(dnn, output)
        elif self.active and field in ("deadline_ms", "enable", "max_rate_hz"):
            self._ledger.update(dnn, **vars(self._ledger_settings(dnn)))
            for decoder in self._decoders.values():
                decoder.wake()

    def _ledger_settings(self, dnn: str) -> DnnSettings:
        it = self.config.dnns[dnn]
        deadline_ns = round(it.deadline_ms * 1e6) or None
        return DnnSettings(self.description.dnns[dnn].cameras, deadline_ns, it.enable, it.max_rate_hz)

    def adopt(self, changes: Changes, dnns: Mapping[str, DnnDescription]) -> None:
        """A model swap has replaced settings of DNNs. dnns: their new descriptions."""
        self._capacity = None  # it was measured with the previous settings
        described = {**self.description.dnns, **{dnn: dnns[dnn] for dnn in changes}}
        self.description = replace(self.description, dnns=described, fits={})
        for dnn, values in changes.items():
            for name, value in values.items():
                assign(self.config.dnns[dnn], name, value)
            self._update_thresholds(dnn)
            self._publish_labels(dnn, *dnns[dnn].results)

    def _threshold(self, dnn: str, output: str = "") -> float:
        """The score threshold that a result is served with; 0 in the parameter selects that of the model."""
        settings = self.config.dnns[dnn]
        given = settings.outputs[output].score_threshold if output else settings.score_threshold
        return given or self.description.dnns[dnn].results[output].own_threshold

    def _update_thresholds(self, dnn: str) -> None:
        """Make the engine also return the boxes that only continue tracks; no effect without `track`."""
        if self.config.dnns[dnn].track:
            self.host.update(dnn, "score_threshold", min(self._threshold(dnn), LOW_SCORE))
            for (name, _), tracks in self._tracks.items():
                if name == dnn:
                    tracks.set_threshold(self._threshold(dnn))

    def _publish_labels(self, dnn: str, *outputs: str) -> None:
        """Publish class names and thresholds of results of a DNN; inactive publishers drop them."""
        for output in outputs:
            labels = self.description.dnns[dnn].results[output].labels
            self._outputs.publish_labels(result_name(dnn, output), labels, self._threshold(dnn, output))

    def _enable(self, name: str, request: Any, response: Any) -> Any:
        """The service ``~/<dnn>/enable`` sets the parameter, so that both always agree."""
        (result,) = self._node.set_parameters([Parameter(name, value=bool(request.data))])
        response.success = result.successful
        response.message = result.reason or f"{name} is {str(request.data).lower()}"
        return response

    # -- diagnostics

    def values(self) -> dict[str, object]:
        """For the status of the node."""
        results = (
            f"{result_name(dnn, output)} ({result.result_kind})"
            for dnn, described in self.description.dnns.items()
            for output, result in described.results.items()
        )
        return {
            **self.description.versions,
            "device": self.description.device,
            "workers": self.description.workers,
            "policy": self.config.policy,
            "DNNs": ", ".join(self.config.dnns),
            "results": ", ".join(results),
            "cameras": ", ".join(self.config.cameras),
        }

    def statuses(self) -> Iterator[Status]:
        """Whether the DNNs fit the device; while active, each DNN on each camera, each camera, and its ground."""
        if (capacity := self._capacity) is not None:
            yield Status("capacity", OK if capacity.fits else WARN, capacity.text, capacity.values)
        if not self.active:
            return
        statistics, now_ns = self._ledger.statistics(), time.monotonic_ns()
        inputs, switched_off, disabled = dict(self._inputs), self._ledger.switched_off(), self._ledger.disabled()
        bad_images = dict.fromkeys(inputs, 0)
        for (dnn, camera), figures in statistics.items():
            if camera not in inputs:  # not subscribed yet
                continue
            level, text = OK, SWITCHED_OFF_MESSAGE
            if dnn not in switched_off and dnn in disabled:
                level, text = ERROR, disabled[dnn]
            elif dnn not in switched_off:
                before = self._last.get((dnn, camera), DnnCameraStatistics())
                level, text = dnn_level(figures, before, inputs[camera].silence(now_ns))
            yield Status(f"{dnn} on {camera}", level, text, dnn_values(figures))
            # Every DNN counts each image that cannot be decoded.
            bad_images[camera] = max(bad_images[camera], figures.dropped.get(DropReason.BAD_IMAGE, 0))
        self._last = statistics
        for camera, source in inputs.items():
            yield source.status(bad_images[camera], now_ns)
        yield from self._ground.statuses()

    # -- called in threads of the host and in threads that decode images

    def _on_result(self, result: Result) -> None:
        if (tracks := self._tracks.get((result.dnn, result.frame.camera))) is not None:
            result = tracks.apply(result)
        self._outputs.publish(result, self._ground.view)
        call_and_log_errors(self._overlay.add, result)  # the frame counts as published even if this fails

    def _on_drop(self, drop: Drop) -> None:
        """Log failures as errors and other drops at level debug."""
        self._overlay.skip(drop)
        text = f"DNN {drop.dnn} dropped a frame of camera {drop.frame.camera}: {drop.reason.value}: {drop.message}"
        if drop.reason.effect is not DropEffect.FAILURE:
            self._log.debug(f"{text} (stamp {drop.frame.stamp_ns} ns)")
        else:
            self._logs[drop.dnn].error(text, throttle_duration_sec=_LOG_PERIOD_S)

    def _on_bad_image(self, camera: str, error: FrameError) -> None:
        self._logs[camera].warning(f"camera {camera}: bad_image: {error}", throttle_duration_sec=_LOG_PERIOD_S)

    def _on_failure(self, failure: Failure) -> None:
        if failure.disabled:
            self._log.error(f"DNN {failure.dnn} is {failure.reason or failure.message}")  # both begin with "disabled"


def _tracking_problem(dnn: str, config: NodeConfig, kinds: Mapping[str, ResultKind]) -> str:
    """Why the results of a DNN cannot be tracked; empty: they can, or need not. kinds: of its results, by output."""
    names = [kind.name for kind in kinds.values() if not issubclass(kind.type, Detections)]
    if not config.dnns[dnn].track or not (names or config.dnns[dnn].outputs):
        return ""
    reason = f"its results are {', '.join(names)}, not boxes" if names else "it has several results (outputs)"
    return f"parameter dnn.{dnn}.track is true; allowed: false, because {reason}"


class _Tracks:
    """The tracks of a DNN on a camera. Results may come from two engine processes while one replaces the other."""

    def __init__(self, threshold: float) -> None:
        self._lock = threading.Lock()
        self._tracker = ByteTracker(TrackerSettings(threshold))
        self._labels: tuple[str, ...] = ()  # class names of the latest result

    def set_threshold(self, threshold: float) -> None:
        with self._lock:
            self._tracker.set_high_score(threshold)

    def apply(self, result: Result) -> Result:
        """The result with identities. Raises ValueError for invalid boxes."""
        with self._lock:
            labels = tuple(result.output.labels)
            if self._labels != labels:  # another model: the classes mean something else
                self._labels = labels
                self._tracker.end_tracks()
            # Without stamps no time would pass, and lost tracks would never end.
            time_ns = result.frame.stamp_ns or result.frame.received_ns
            return result._replace(output=self._tracker.update(result.output, time_ns))
