"""The node from activation to deactivation: passes images from the cameras to the engine and publishes its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.task import Drop, DropEffect, DropReason, Result
from multi_dnn_ros.ros.camera_input import CameraInput, image_topic
from multi_dnn_ros.ros.diagnostics import DiagnosticsReport
from multi_dnn_ros.ros.ground import Ground
from multi_dnn_ros.ros.log_throttle import LogThrottle
from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.ros.stamp_ages import StampAges
from multi_dnn_ros.ros.tracking import Tracks
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.drawing import DrawFailure

#: Period of checking the publishers of the cameras.
_CHECK_PERIOD_S = 0.5
#: Share of stop_timeout_s that the decoding threads may take.
_DECODER_SHARE = 0.2
#: Minimum time for the overlay in progress, even if the engine has used up stop_timeout_s.
_MIN_OVERLAY_STOP_S = 0.5


class ServingSession:
    """Serves frames from its creation until :meth:`stop`.

    host: configured. description: the result of configuring it. outputs: activated. tracks: new trackers, which add
    identities to the results.
    """

    def __init__(
        self,
        node: LifecycleNode,
        config: NodeConfig,
        host: Host,
        description: EngineDescription,
        outputs: ResultPublishers,
        tracks: Tracks,
    ) -> None:
        self._node = node
        self._log = node.get_logger()
        self._clock = node.get_clock()
        self._host = host
        self._outputs = outputs
        self._tracks = tracks
        self._throttle = LogThrottle()
        self._bad_files: dict[str, int] = {}  # by camera, arrival of the last image that the engine could not decode
        self._stopped = False
        self._subscribed = True
        self._hanging: list[threading.Thread] = []  # threads of the host that did not end when stopped
        self._ledger = Ledger(
            {
                name: DnnSettings(dnn.cameras, deadline_ns(it.deadline_ms), it.enable, it.max_rate_hz)
                for name, dnn in description.dnns.items()
                for it in (config.dnns[name],)
            },
            Callbacks(self._on_result, self._on_drop, self._on_failure),
            on_answered=lambda camera: self._decoders[camera].wake(),
        )
        self._ages = {(name, camera): StampAges() for name, dnn in description.dnns.items() for camera in dnn.cameras}
        served = dict.fromkeys(camera for dnn in description.dnns.values() for camera in dnn.cameras)
        self._overlay = OverlayPublisher(
            outputs.overlays,
            {camera: self._ledger.dnns_of(camera) for camera in served},
            outputs.kinds,
            self._on_overlay_failure,
            self._on_draw_failure,
        )
        self._decoders = {
            camera: CameraDecoder(camera, host, self._ledger, partial(self._on_bad_image, camera)) for camera in served
        }
        # Subscribe last, when everything that processes a frame exists, and only to cameras that a DNN processes.
        self._inputs: dict[str, CameraInput] = {}
        self._ground = Ground(
            node,
            config,
            {camera: image_topic(node, camera, config.cameras[camera]) for camera in outputs.ground_cameras},
            time.monotonic_ns,
            self._log.warning,
        )
        # On the steady clock, because simulated time may be paused.
        self._check_timer = node.create_timer(
            _CHECK_PERIOD_S, self._check_cameras, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        try:
            host.start(self._ledger)
            for camera, decoder in self._decoders.items():
                decoder.start()
                settings = config.cameras[camera]
                self._inputs[camera] = CameraInput(node, camera, settings, decoder.arrived, time.monotonic_ns)
        except Exception:  # the caller gets no object to stop
            self.stop(config.stop_timeout_s)
            raise
        for camera in config.cameras.keys() - self._decoders.keys():
            self._log.warning(f"camera {camera}: no DNN processes its images (parameters dnn.<dnn>.cameras)")

    def set_threshold(self, dnn: str, threshold: float) -> None:
        """The score threshold of a DNN has changed."""
        self._tracks.set_threshold(dnn, threshold)

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Apply a changed runtime parameter of a DNN that is not applied by the host."""
        if name == "deadline_ms":
            self._ledger.update(dnn, deadline_ns=deadline_ns(value))
        elif name == "max_rate_hz":
            self._ledger.update(dnn, max_rate_hz=value)
        elif name == "enable":
            self._ledger.update(dnn, enabled=value)
            for decoder in self._decoders.values():
                decoder.wake()

    def failed_threads(self) -> list[str]:
        """Names of its threads that ended with an error; the log has the traceback."""
        if self._stopped:
            return []
        return [thread.name for thread in (*self._decoders.values(), self._overlay.thread) if not thread.is_alive()]

    def published(self) -> dict[tuple[str, str], int]:
        """Number of results published so far, by DNN and camera."""
        return {pair: figures.published for pair, figures in self._ledger.statistics().by_dnn_and_camera.items()}

    def statuses(self, report: DiagnosticsReport) -> Iterator[DiagnosticStatus]:
        """The statuses of each DNN on each camera, of each camera, and of each camera's projection onto the ground."""
        statistics, now_ns = self._ledger.statistics(), time.monotonic_ns()
        for source in self._inputs.values():
            source.update_record()
        cameras = {camera: source.record for camera, source in self._inputs.items()}
        yield from report.dnns(statistics, cameras, self._ages, now_ns, self._ledger.switched_off())
        yield from report.cameras(statistics, cameras, now_ns)
        yield from self._ground.statuses(report)

    def unsubscribe(self) -> None:
        """Destroy the subscriptions; to be called in the thread that spins the node, if it is spinning."""
        if self._subscribed:
            self._subscribed = False
            self._node.destroy_timer(self._check_timer)
            for source in self._inputs.values():
                source.close()
            self._ground.close()

    def stop(self, timeout_s: float) -> list[str]:
        """Accept no more frames, finish those in progress, end all threads; returns the names of threads that hang."""
        end = time.monotonic() + timeout_s
        self._stopped = True
        self.unsubscribe()
        decoders_end = time.monotonic() + _DECODER_SHARE * timeout_s
        for decoder in self._decoders.values():
            decoder.close(max(decoders_end - time.monotonic(), 0.0))
        hanging = self._host.stop(max(end - time.monotonic(), 0.0))
        self._hanging = [thread for thread in threading.enumerate() if thread.name in hanging]
        self._ledger.drop_unanswered(DropReason.SHUTDOWN, "not answered before the engine stopped")
        self._overlay.stop(max(end - time.monotonic(), _MIN_OVERLAY_STOP_S))
        for (dnn, camera), figures in self._ledger.statistics().by_dnn_and_camera.items():
            lost = ", ".join(f"{count} {reason.value}" for reason, count in figures.dropped.items() if count)
            self._log.info(
                f"{dnn} on {camera}: {figures.published} of {figures.offered} frames published"
                + (f"; dropped: {lost}" if lost else "")
            )
        return list(dict.fromkeys((*hanging, *self.running_threads())))

    def running_threads(self) -> list[str]:
        """Names of its running threads; after :meth:`stop`, of those that hang."""
        threads = (*self._decoders.values(), *self._hanging, self._overlay.thread)
        return [thread.name for thread in threads if thread.is_alive()]

    def _check_cameras(self) -> None:
        for source in self._inputs.values():
            source.update()
        self._ground.update(self._outputs.wanted_on_ground())

    # -- called in threads of the host and in threads that decode images

    def _on_result(self, result: Result) -> None:
        result = self._tracks.apply(result)
        self._outputs.publish(result, self._ground.view)
        call_and_log_errors(self._after_publishing, result)  # the frame counts as published even if this fails

    def _after_publishing(self, result: Result) -> None:
        ages = self._ages[result.dnn, result.frame.camera]
        ages.add(time.monotonic_ns(), self._clock.now().nanoseconds, result.frame.stamp_ns)
        self._overlay.add(result)

    def _on_bad_file(self, drop: Drop) -> None:
        """Report the image once, although every DNN drops it."""
        camera, received_ns = drop.frame.camera, drop.frame.received_ns
        if self._bad_files.get(camera) != received_ns:
            self._bad_files[camera] = received_ns
            self._on_bad_image(camera, FrameError(drop.message))

    def _on_drop(self, drop: Drop) -> None:
        """Failures are logged as errors, other drops at level debug. A bad image, which affects all DNNs of the camera,
        is also logged once by _on_bad_image.
        """
        self._overlay.skip(drop)
        if drop.reason is DropReason.BAD_IMAGE and drop.frame.has_image:  # a JPEG file that the engine could not decode
            self._on_bad_file(drop)
        if drop.reason.effect is not DropEffect.FAILURE:
            self._log.debug(
                f"DNN {drop.dnn} dropped the frame of camera {drop.frame.camera} with stamp {drop.frame.stamp_ns} ns: "
                f"{drop.reason.value}: {drop.message}"
            )
            return
        more = self._throttle.passes((drop.reason, drop.dnn))
        if more is not None:
            self._log.error(
                f"DNN {drop.dnn} dropped a frame of camera {drop.frame.camera}: {drop.reason.value}: "
                f"{drop.message}{more}"
            )

    def _on_bad_image(self, camera: str, error: FrameError) -> None:
        more = self._throttle.passes((DropReason.BAD_IMAGE, camera))
        if more is not None:
            self._log.warning(f"camera {camera}, topic {self._inputs[camera].record.topic}: {error}{more}")

    def _on_failure(self, failure: Failure) -> None:
        if failure.disabled:
            self._log.error(f"DNN {failure.dnn} is {failure.reason or failure.message}")  # both begin with "disabled"

    def _on_overlay_failure(self, message: str) -> None:
        more = self._throttle.passes("overlay")
        if more is not None:
            self._log.error(message + more)

    def _on_draw_failure(self, camera: str, failure: DrawFailure) -> None:
        more = self._throttle.passes(("draw", failure.kind, failure.dnns))
        if more is not None:
            self._log.warning(f"the overlay of camera {camera} is incomplete: {failure}{more}")


def deadline_ns(deadline_ms: float) -> int | None:
    """The value of the parameter deadline_ms in nanoseconds; None for 0."""
    return round(deadline_ms * 1e6) or None
