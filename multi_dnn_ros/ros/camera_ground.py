"""The projection of one camera's pixels onto the ground: its calibration, its pose, and counts for /diagnostics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header

from multi_dnn_ros.ros.camera_info import Calibration, checked_calibration, content, info_topic
from multi_dnn_ros.ros.diagnostics import OK, WARN, DiagnosticsReport
from multi_dnn_ros.ros.log_throttle import LogThrottle
from multi_dnn_ros.ros.transforms import PoseError, Transforms
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.ground import CameraPose, GroundPoints, GroundView, Outcome
from multi_dnn_ros.vision.lens import CalibrationError

#: Best effort is compatible with every publisher, and a later message replaces a lost one.
_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
_COUNTS = {
    Outcome.KEPT: "points published",
    Outcome.ABOVE_HORIZON: "left out: above the horizon",
    Outcome.TOO_FAR: "left out: beyond ground_range_m",
    Outcome.OUTSIDE_LENS: "left out: outside the lens model",
}
#: Projects pixels (N, 2) of an image onto the ground.
Project = Callable[[npt.NDArray[np.floating]], GroundPoints]


class CameraGround:
    """Calibration, pose and counts of one camera.

    image_topic: absolute. transforms: open while the points of a camera that uses TF have a subscription. clock:
    monotonic, nanoseconds. warn: logs a warning. :meth:`view` is called in threads of the host, everything else in the
    executor's thread.
    """

    def __init__(
        self,
        node: LifecycleNode,
        config: NodeConfig,
        camera: str,
        image_topic: str,
        transforms: Transforms,
        clock: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._node = node
        self._camera = camera
        self._settings = settings = config.cameras[camera]
        self._vehicle = config.vehicle_frame
        self._ground_z = config.ground_z_m
        self._topic = settings.info_topic or info_topic(image_topic, settings.transport)
        self._transforms = transforms
        self._clock = clock
        self._warn = warn
        self._throttle = LogThrottle()
        self._subscription: Any = None
        self._since_ns = 0
        self._content: tuple[Any, ...] | None = None
        #: From the last CameraInfo, or why it cannot be used; None: no CameraInfo yet. Replaced, never modified.
        self._calibration: Calibration | CalibrationError | None = None
        self._pose: CameraPose | None = None  # None: from TF
        if settings.height_m > 0.0:
            position = (settings.x_m, settings.y_m, config.ground_z_m + settings.height_m)
            self._pose = CameraPose.mounted(position, settings.roll_rad, settings.pitch_rad, settings.yaw_rad)
        self._lock = threading.Lock()  # guards the attributes below
        self._counts: Counter[Outcome] = Counter()
        self._without_points = 0
        self._problem = ""  # with the last image; empty: none

    @property
    def uses_tf(self) -> bool:
        """Whether the pose is not known from the parameters."""
        return self._pose is None

    def update(self, wanted: bool) -> None:
        """Set whether the points have a subscription; the CameraInfo is subscribed to only then."""
        if wanted and self._subscription is None:
            self._since_ns = self._clock()
            self._subscription = self._node.create_subscription(CameraInfo, self._topic, self._on_info, _QOS)
        elif not wanted and self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = self._content = self._calibration = None
            with self._lock:
                self._problem = ""

    def view(self, header: Header, image_size: tuple[int, int]) -> Project | None:
        """The projection, which counts points, for an image of (width, height) with this header; None: not possible."""
        view, problem = None, ""
        try:
            view = self._view(header, image_size)
        except CalibrationError as error:
            problem = str(error)
        except PoseError as error:
            problem = f"{error}; set camera.{self._camera}.height_m, pitch_rad, ... or correct the transform"
        with self._lock:
            self._problem = problem
            self._without_points += view is None
        if view is None:
            return None
        found = view

        def project(pixels: npt.NDArray[np.floating]) -> GroundPoints:
            points = found.project(pixels)
            with self._lock:
                for outcome in Outcome:
                    self._counts[outcome] += int(np.count_nonzero(points.outcomes == outcome))
            return points

        return project

    def status(self, report: DiagnosticsReport, stale_after_s: float) -> DiagnosticStatus:
        """WARN while points with a subscription cannot be computed. stale_after_s: time to wait for a CameraInfo."""
        calibration = self._calibration
        with self._lock:
            problem = self._problem
            values: dict[str, object] = {
                "CameraInfo": self._topic,
                "pose from": "TF" if self.uses_tf else "parameters",
                **{key: self._counts[outcome] for outcome, key in _COUNTS.items()},
                "results without points": self._without_points,
            }
        if isinstance(calibration, CalibrationError):
            problem = f"{calibration} ({self._topic})"
        level, text = OK, f"points in {self._vehicle}"
        if self._subscription is None:
            text = "no subscription"
        elif self._is_waiting(stale_after_s):
            text = f"waiting for a CameraInfo on {self._topic}"
        elif problem or calibration is None:
            level, text = WARN, problem or self._no_info()
        return report.status(f"ground {self._camera}", level, text, values)

    def log_problem(self, stale_after_s: float) -> None:
        """Log why there are no points; throttled."""
        with self._lock:
            problem = self._problem
        if self._subscription is None or self._is_waiting(stale_after_s) or not problem:
            return
        more = self._throttle.passes("no points")
        if more is not None:
            self._warn(f"camera {self._camera}: no points on the ground: {problem}{more}")

    def _on_info(self, message: CameraInfo) -> None:
        found = content(message)
        if found == self._content:  # usually, as cameras publish it with every image
            return
        self._content = found
        try:
            self._calibration = checked_calibration(message, rectified=self._settings.rectified)
        except CalibrationError as error:
            self._calibration = error

    def _view(self, header: Header, image_size: tuple[int, int]) -> GroundView:
        """Raises CalibrationError and PoseError."""
        calibration = self._calibration
        if calibration is None:
            raise CalibrationError(self._no_info())
        if isinstance(calibration, CalibrationError):
            raise CalibrationError(f"{calibration} ({self._topic})")
        area = calibration.area(image_size)
        pose = self._pose or self._transforms.pose(self._vehicle, header.frame_id, header.stamp)
        height = float(pose.position[2]) - self._ground_z
        if height <= 0.0:
            raise PoseError(f"the camera is {-height:.2f} m below the ground (ground_z_m is {self._ground_z:g})")
        turned = CameraPose(pose.rotation @ calibration.rotation, pose.position)
        return GroundView(calibration.lens, area, turned, self._ground_z, self._settings.ground_range_m)

    def _is_waiting(self, stale_after_s: float) -> bool:
        """Whether no CameraInfo has arrived, but the subscription is too new to expect one."""
        return self._calibration is None and (self._clock() - self._since_ns) / 1e9 < stale_after_s

    def _no_info(self) -> str:
        return (
            f"no CameraInfo on {self._topic}; start the camera's driver with a calibration, or set "
            f"camera.{self._camera}.info_topic"
        )
