"""Results on the ground, in metres, for the cameras whose points have a subscription."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import Header

from multi_dnn_ros.ros.camera_ground import CameraGround, Project
from multi_dnn_ros.ros.diagnostics import DiagnosticsReport
from multi_dnn_ros.ros.transforms import Transforms
from multi_dnn_ros.settings.schema import NodeConfig


class Ground:
    """The projections of all cameras onto the ground.

    image_topics: absolute topics of the images, by camera. clock: monotonic, nanoseconds. warn: logs a warning.
    Subscriptions to CameraInfo and TF exist only while there is a subscription to points.
    """

    def __init__(
        self,
        node: LifecycleNode,
        config: NodeConfig,
        image_topics: Mapping[str, str],
        clock: Callable[[], int],
        warn: Callable[[str], None],
    ) -> None:
        self._transforms = Transforms(node)
        self._vehicle = config.vehicle_frame
        self._stale_after_s = config.stale_after_s
        self._cameras = {
            camera: CameraGround(node, config, camera, topic, self._transforms, clock, warn)
            for camera, topic in image_topics.items()
        }

    def update(self, wanted: Collection[str]) -> None:
        """Set the cameras whose points have a subscription; called in the executor's thread, about twice a second."""
        if any(self._cameras[camera].uses_tf for camera in wanted):
            self._transforms.open()
        else:
            self._transforms.close()
        for name, camera in self._cameras.items():
            camera.update(name in wanted)
            camera.log_problem(self._stale_after_s)

    def close(self) -> None:
        """Destroy all subscriptions; to be called in the executor's thread."""
        self.update(())

    def view(self, camera: str, header: Header, image_size: tuple[int, int]) -> tuple[Header, Project] | None:
        """Header and projection for results of an image of (width, height); None: not possible, a status says why."""
        project = self._cameras[camera].view(header, image_size)
        return None if project is None else (Header(stamp=header.stamp, frame_id=self._vehicle), project)

    def statuses(self, report: DiagnosticsReport) -> Iterator[DiagnosticStatus]:
        """One status per camera: `ground <camera>`."""
        for camera in self._cameras.values():
            yield camera.status(report, self._stale_after_s)
