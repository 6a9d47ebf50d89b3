"""The active node: cameras into the engine, the engine's results out. Made when activating, thrown away afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result
from multi_dnn_ros.frame_error import FrameError
from multi_dnn_ros.ros.diagnostics import DiagnosticsReport, PublishAges
from multi_dnn_ros.ros.inputs import CameraInput
from multi_dnn_ros.ros.outputs import ResultPublishers
from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher
from multi_dnn_ros.ros.receive_check import ReceiveCheck
from multi_dnn_ros.ros.socket_drops import SocketDrops
from multi_dnn_ros.schema import DnnConfig, NodeConfig

#: Drops with a cause worth a line in the log; the others are only counted. A bad image, which all DNNs of its camera
#: lose, has one line of its own.
_LOGGED = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT, DropReason.PUBLISH_ERROR)
_LOG_PERIOD_S = 5.0
#: How often the cameras' publishers and the sockets' drop counters are looked at.
_LOOK_PERIOD_S = 0.5
#: What a picture that is being drawn has at least, where the engine used up all the time there was to stop.
_OVERLAY_STOP_S = 0.5


class LogThrottle:
    """Lets a message of each kind pass once in a period, and says how many were held back since."""

    def __init__(self, period_s: float = _LOG_PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._passed: dict[object, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def passes(self, kind: object) -> str | None:
        """None: hold it back. Else what to add to the message."""
        now = self._clock()
        with self._lock:
            at, held = self._passed.get(kind, (-self._period_s, 0))
            if now - at < self._period_s:
                self._passed[kind] = (at, held + 1)
                return None
            self._passed[kind] = (now, 0)
        return f" ({held} more like it in the meantime)" if held else ""


class Serving:
    """Serves frames from the moment it is made until :meth:`stop`.

    pipeline: as of multi_dnn_ros.pipeline.build. outputs: activated already. check: of the node's receive buffers.
    """

    def __init__(
        self, node: LifecycleNode, config: NodeConfig, pipeline: Any, outputs: ResultPublishers, check: ReceiveCheck
    ) -> None:
        self._node = node
        self._log = node.get_logger()
        self._clock = node.get_clock()
        self._outputs = outputs
        self._throttle = LogThrottle()
        tasks = [_with_settings(task, config.dnns[task.name]) for task in pipeline.tasks]
        self._ages = PublishAges((task.name, camera) for task in tasks for camera in task.cameras)
        dnns = {
            camera: tuple(task.name for task in tasks if camera in task.cameras)
            for camera in dict.fromkeys(camera for task in tasks for camera in task.cameras)
        }
        self._engine = Engine(
            tasks,
            on_result=self._on_result,
            on_drop=self._on_drop,
            on_failure=self._on_failure,
            workers=pipeline.workers,
            policy=config.policy,
            device=pipeline.device,
            max_failures=config.max_failures,
            aging_ns=nanoseconds(config.aging_ms),
            max_launched=config.max_launched or None,
        )
        self._overlay = OverlayPublisher(outputs.overlays, dnns, self._on_overlay_failure)
        self._engine.start()
        # Last, when everything that a frame meets is there. A camera that no DNN serves is not subscribed to.
        self._inputs: dict[str, CameraInput] = {}
        self._drops = SocketDrops()
        # Steady: also while simulated time stands still.
        self._look_timer = node.create_timer(_LOOK_PERIOD_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))
        try:
            for camera in config.cameras:
                if camera in dnns:
                    settings, bad = config.cameras[camera], self._on_bad_image
                    self._inputs[camera] = CameraInput(
                        node, camera, settings, self._engine.offer, bad, time.monotonic_ns, check
                    )
        except Exception:  # nobody would have what to stop
            self.stop(config.stop_timeout_s)
            raise
        for camera in config.cameras.keys() - dnns.keys():
            self._log.warning(f"camera {camera}: no DNN serves it (parameters dnn.<dnn>.cameras)")

    def update(self, dnn: str, field: str, value: Any) -> None:
        """Change a DNN's scheduling while it runs."""
        if field == "priority":
            self._engine.update(dnn, priority=value)
        elif field == "deadline_ms":
            self._engine.update(dnn, deadline_ns=nanoseconds(value))
        elif field == "max_age_ms":
            self._engine.update(dnn, max_age_ns=nanoseconds(value))

    def ended(self) -> list[str]:
        """Threads of the engine that ended by an error; the log has the traceback."""
        return self._engine.ended()

    def published(self) -> dict[tuple[str, str], int]:
        """Results published so far, by DNN and camera."""
        return {stream: figures.published for stream, figures in self._engine.statistics().streams.items()}

    def statuses(self, report: DiagnosticsReport) -> Iterable[DiagnosticStatus]:
        """Diagnostics of the streams and of the cameras."""
        statistics, now_ns = self._engine.statistics(), time.monotonic_ns()
        for source in self._inputs.values():
            source.update_losses()
        cameras = {camera: source.record for camera, source in self._inputs.items()}
        yield from report.streams(statistics, cameras, self._ages, now_ns)
        yield from report.cameras(statistics, cameras, now_ns)

    def stop(self, timeout_s: float) -> list[str]:
        """Take no more frames, finish those under way, end all threads; names those that did not end in time."""
        end = time.monotonic() + timeout_s
        self._node.destroy_timer(self._look_timer)
        for source in self._inputs.values():
            source.close()
        self._engine.stop(timeout_s, drain=True)
        self._overlay.stop(max(end - time.monotonic(), _OVERLAY_STOP_S))
        for (dnn, camera), stream in self._engine.statistics().streams.items():
            lost = ", ".join(f"{count} {reason.value}" for reason, count in stream.dropped.items() if count)
            self._log.info(
                f"{dnn} on {camera}: {stream.published} of {stream.offered} frames published"
                + (f"; dropped: {lost}" if lost else "")
            )
        return self.alive()

    def alive(self) -> list[str]:
        """The names of its threads that run; after :meth:`stop` those that hang, as long as they do."""
        return self._engine.alive() + ["overlay"] * self._overlay.alive()

    def _look(self) -> None:
        drops = self._drops.poll()
        for source in self._inputs.values():
            source.look(drops)

    # -- called in the engine's threads

    def _on_result(self, result: Result) -> None:
        self._outputs.publish(result)
        age_ns = self._clock.now().nanoseconds - result.frame.stamp_ns
        self._ages.add((result.dnn, result.frame.camera), time.monotonic_ns(), age_ns)
        self._overlay.add(result)

    def _on_drop(self, drop: Drop) -> None:
        self._overlay.skip(drop)
        if drop.reason not in _LOGGED:
            return
        more = self._throttle.passes((drop.reason, drop.dnn))
        if more is not None:
            self._log.error(
                f"DNN {drop.dnn} lost a frame of {drop.frame.camera}: {drop.reason.value}: {drop.message}{more}"
            )

    def _on_bad_image(self, camera: str, error: FrameError) -> None:
        more = self._throttle.passes((DropReason.BAD_IMAGE, camera))
        if more is not None:
            self._log.warning(f"camera {camera}, topic {self._inputs[camera].record.topic}: {error}{more}")

    def _on_failure(self, failure: Failure) -> None:
        if failure.disabled:
            self._log.error(
                f"DNN {failure.dnn} is disabled ({failure.consecutive} consecutive failures): {failure.message}"
            )

    def _on_overlay_failure(self, message: str) -> None:
        more = self._throttle.passes("overlay")
        if more is not None:
            self._log.error(message + more)


def nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _with_settings(task: DnnTask, settings: DnnConfig) -> DnnTask:
    """The task with what may have changed since it was made."""
    return replace(
        task,
        priority=settings.priority,
        deadline_ns=nanoseconds(settings.deadline_ms) or None,
        max_age_ns=nanoseconds(settings.max_age_ms) or None,
    )
