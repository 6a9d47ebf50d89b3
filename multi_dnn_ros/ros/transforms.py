"""Poses of frames from TF (tf2_ros), which not every installation of ROS 2 has."""

from __future__ import annotations

import importlib
from typing import Any

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode
from rclpy.time import Time

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.ros.stamp_ages import SET_BACK_NS
from multi_dnn_ros.vision.ground import CameraPose


class PoseError(ValueError):
    """The pose of a frame is not known; the message says why."""


class Transforms:
    """Listens to /tf and /tf_static while it is open. :meth:`pose` may be called in any thread, the other methods only
    in the executor's thread.
    """

    def __init__(self, node: LifecycleNode) -> None:
        self._node = node
        self._buffer: Any = None
        self._listener: Any = None
        self._jumps: Any = None
        self._error = "TF is not subscribed to yet"

    def open(self) -> None:
        """Start listening, unless it is open already. Without tf2_ros, :meth:`pose` raises."""
        if self._listener is not None:
            return
        try:
            tf2_ros = importlib.import_module("tf2_ros")
        except ImportError as error:
            self._error = f"TF cannot be used without tf2_ros (package tf2_ros_py): {summarize_error(error)}"
            return
        self._buffer = buffer = tf2_ros.Buffer()
        # After simulated time was set back, the buffer would reject new transforms as older than those it has. It only
        # notices this itself if it gets the node, for which it then also offers a service.
        threshold = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-SET_BACK_NS), on_clock_change=True
        )
        self._jumps = self._node.get_clock().create_jump_callback(threshold, post_callback=lambda _: buffer.clear())
        self._listener = tf2_ros.TransformListener(self._buffer, self._node, spin_thread=False)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.unregister()
            self._jumps.unregister()
        self._listener = self._buffer = self._jumps = None

    def pose(self, vehicle: str, frame: str, stamp: Any) -> CameraPose:
        """The pose of `frame` in `vehicle` at the time of a builtin_interfaces/Time. Raises PoseError."""
        buffer = self._buffer
        if buffer is None:
            raise PoseError(self._error)
        if not frame:
            raise PoseError("the header of the image has no frame_id; set it in the camera's driver")
        try:
            found = buffer.lookup_transform(vehicle, frame.lstrip("/"), Time.from_msg(stamp)).transform
        except Exception as error:  # tf2's exceptions have no common base class that can be imported without tf2
            reason = summarize_error(error).rstrip(".")
            raise PoseError(f"TF has no transform from {frame} to {vehicle}: {reason}") from error
        at, turned = found.translation, found.rotation
        try:
            return CameraPose.of_transform((at.x, at.y, at.z), (turned.x, turned.y, turned.z, turned.w))
        except ValueError as error:
            raise PoseError(f"the transform from {frame} to {vehicle} is invalid: {error}") from error
