"""Results on the ground, in metres: calibration and pose of the cameras whose points have a subscription."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.ros.camera_input import topic_name
from multi_dnn_ros.ros.diagnostics import OK, SET_BACK_NS, WARN, Status
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.ground import CameraPose, GroundPoints, GroundView, ImageArea
from multi_dnn_ros.vision.lens import CalibrationError, Lens, Points, checked_lens

#: Compatible with every publisher.
_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
#: A resized image may differ from the exact aspect ratio by this number of pixels.
_ROUNDING = 1.0
#: Points further away are left out, because their error grows with the square of the distance.
_RANGE_M = 50.0
#: Projects pixels (N, 2) onto the ground.
Project = Callable[[npt.NDArray[np.floating]], GroundPoints]


class Ground:
    """The projections of cameras, with subscriptions to CameraInfo and TF only while somebody subscribes to points."""

    def __init__(self, node: LifecycleNode, config: NodeConfig, cameras: Iterable[str]) -> None:
        self._node = node
        self._vehicle = config.vehicle_frame
        self._cameras = {camera: _CameraGround(node, config, camera) for camera in cameras}
        self._closing = threading.Lock()
        self._closed = False
        self._listener: Any = None  # of tf2_ros
        self._jumps: Any = None

    def update(self, wanted: Collection[str]) -> None:
        """Set the cameras whose points have a subscription; to be called about twice a second, until :meth:`close`."""
        with self._closing:
            if not self._closed:
                self._update(wanted)

    def close(self) -> None:
        """Destroy all subscriptions."""
        with self._closing:
            self._closed = True
            self._update(())

    def _update(self, wanted: Collection[str]) -> None:
        uses_tf = any(self._cameras[camera].mounted is None for camera in wanted)
        if uses_tf and self._listener is None:
            self._open_tf()
        elif not uses_tf and self._listener is not None:
            self._listener.unregister()
            self._jumps.unregister()
            self._listener = None
        for name, camera in self._cameras.items():
            camera.update(name in wanted, self._listener.buffer if self._listener is not None else None)

    def view(self, camera: str, header: Header, image_size: tuple[int, int]) -> tuple[Header, Project] | None:
        """Header and projection for an image of (width, height), in any thread; None: a status says why not."""
        project = self._cameras[camera].view(header, image_size)
        return None if project is None else (Header(stamp=header.stamp, frame_id=self._vehicle), project)

    def statuses(self) -> Iterator[Status]:
        """One status per camera: `ground <camera>`."""
        for camera in self._cameras.values():
            yield camera.status()

    def _open_tf(self) -> None:
        """Listen to /tf and /tf_static, if tf2_ros is installed."""
        try:
            tf2_ros = importlib.import_module("tf2_ros")
        except ImportError:
            return
        buffer = tf2_ros.Buffer()
        # After simulated time was set back, the buffer would reject new transforms as older than those it has.
        back = Duration(nanoseconds=-SET_BACK_NS)
        threshold = JumpThreshold(min_forward=None, min_backward=back, on_clock_change=True)
        self._jumps = self._node.get_clock().create_jump_callback(threshold, post_callback=lambda _: buffer.clear())
        self._listener = tf2_ros.TransformListener(buffer, self._node, spin_thread=False)


class _CameraGround:
    """Calibration and pose of one camera. mounted: the pose in the parameters; None: it comes from TF."""

    def __init__(self, node: LifecycleNode, config: NodeConfig, camera: str) -> None:
        self._node, self._camera = node, camera
        self._settings = settings = config.cameras[camera]
        self._vehicle = config.vehicle_frame
        images = str(node.resolve_topic_name(topic_name(camera, settings)))
        folder = images.removesuffix("/compressed" if settings.transport == "compressed" else "").rpartition("/")[0]
        self._name = f"{folder}/camera_info"  # as image_transport has it
        self._topic = str(node.resolve_topic_name(self._name))
        self._tf: Any = None  # buffer of tf2
        self._subscription: Any = None
        self._info: CameraInfo | None = None  # the last message
        self._without_points = 0  # results
        self._problem = ""  # with the last image; empty: none
        x, y, z, *angles = settings.pose or (0.0, 0.0, 0.0)
        self.mounted = CameraPose.mounted((x, y, z), *angles) if angles else None

    def update(self, wanted: bool, tf: Any) -> None:
        """wanted: whether the points have a subscription; the CameraInfo is subscribed to only then. tf: buffer."""
        self._tf = tf
        if wanted and self._subscription is None:
            keep = partial(setattr, self, "_info")
            self._subscription = self._node.create_subscription(CameraInfo, self._name, keep, _QOS)
        elif not wanted and self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = self._info = None
            self._problem = ""

    def view(self, header: Header, image_size: tuple[int, int]) -> Project | None:
        """The projection for an image of (width, height) with this header; None: not possible."""
        try:
            view, self._problem = self._view(header, image_size), ""
            return view.project
        except CalibrationError as error:
            self._problem = str(error)
            self._without_points += 1
            return None

    def status(self) -> Status:
        """WARN while points with a subscription cannot be computed."""
        values: dict[str, object] = {
            "CameraInfo": self._topic,
            "pose from": "TF" if self.mounted is None else "parameters",
            "results without points": self._without_points,
        }
        text = "no subscription" if self._subscription is None else f"points in {self._vehicle}"
        return Status(f"ground {self._camera}", WARN if self._problem else OK, self._problem or text, values)

    def _view(self, header: Header, image_size: tuple[int, int]) -> GroundView:
        """Raises CalibrationError."""
        try:
            if self._info is None:
                raise CalibrationError("no CameraInfo; start the camera's driver, calibrated, or remap its topic")
            calibration = checked_calibration(self._info, rectified=self._settings.rectified)
            area = calibration.area(image_size)
        except CalibrationError as error:
            raise CalibrationError(f"{error} ({self._topic})") from None
        pose = self.mounted or self._pose_in_tf(header)
        if (height := float(pose.position[2])) <= 0.0:
            raise CalibrationError(f"the camera is {-height:.2f} m below the ground; correct its transform")
        turned = CameraPose(pose.rotation @ calibration.rotation, pose.position)
        return GroundView(calibration.lens, area, turned, range_m=_RANGE_M)

    def _pose_in_tf(self, header: Header) -> CameraPose:
        """The pose of the image's frame in that of the vehicle at the time of its stamp. Raises CalibrationError."""
        frame, vehicle, reason = header.frame_id, self._vehicle, "tf2_ros (package tf2_ros_py) is not installed"
        try:
            if self._tf is not None:
                found = self._tf.lookup_transform(vehicle, frame.lstrip("/"), Time.from_msg(header.stamp)).transform
                at, turned = found.translation, found.rotation
                return CameraPose.of_transform((at.x, at.y, at.z), (turned.x, turned.y, turned.z, turned.w))
        except Exception as error:  # tf2's exceptions have no common base class that can be imported without tf2
            reason = summarize_error(error).rstrip(".")
        text = f"TF has no transform from {frame!r} to {vehicle}: {reason}"
        raise CalibrationError(f"{text}; publish it, or set camera.{self._camera}.pose")


class Calibration(NamedTuple):
    """A checked CameraInfo. rotation: (3, 3) from the frame of the image's rays to the optical frame (if rectified).
    roi: left, top, width and height in the calibrated image. image_size: (width, height) of it, divided by the binning.
    """

    lens: Lens
    rotation: Points
    roi: tuple[int, int, int, int]
    image_size: tuple[float, float]

    def area(self, size: tuple[int, int]) -> ImageArea:
        """The area of the calibrated image that an image of (width, height) shows, which may be resized.

        Raises CalibrationError if its aspect ratio differs from that of `image_size`.
        """
        left, top, width, height = self.roi
        expected = self.image_size
        if abs(size[0] * expected[1] / expected[0] - size[1]) > _ROUNDING:
            raise CalibrationError(
                f"the image has {size[0]} x {size[1]} pixels, but the CameraInfo is for {expected[0]:g} x "
                f"{expected[1]:g}; calibrate the camera at the size of its images, or set roi in the CameraInfo"
            )
        return ImageArea((float(left), float(top)), (width / size[0], height / size[1]))


def checked_calibration(info: CameraInfo, *, rectified: bool) -> Calibration:
    """The calibration of a CameraInfo. rectified: P and R are used instead of K and D.

    Raises CalibrationError if the camera is not calibrated or the message is invalid.
    """
    size, roi = (int(info.width), int(info.height)), info.roi
    if 0 in size:
        raise CalibrationError(f"the CameraInfo is for {size[0]} x {size[1]} pixels: the camera is not calibrated")
    rotation = np.eye(3)
    if rectified:
        lens = checked_lens(np.array(info.p, np.float64).reshape(3, 4)[:, :3].ravel().tolist(), (), "")
        given = np.array(info.r, np.float64).reshape(3, 3)
        if not np.isfinite(given).all() or (given.any() and np.abs(given @ given.T - np.eye(3)).max() > 1e-3):
            raise CalibrationError("R of the CameraInfo is not a rotation; calibrate the camera again")
        rotation = given.T if given.any() else rotation
    else:
        lens = checked_lens(list(info.k), list(info.d), info.distortion_model)
    part = (int(roi.x_offset), int(roi.y_offset), int(roi.width) or size[0], int(roi.height) or size[1])
    if part[0] + part[2] > size[0] or part[1] + part[3] > size[1]:
        raise CalibrationError("the region of interest of the CameraInfo is not inside its image; correct the driver")
    return Calibration(lens, rotation, part, (part[2] / (info.binning_x or 1), part[3] / (info.binning_y or 1)))
