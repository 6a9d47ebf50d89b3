"""Converts results to messages, each with the header of its image; QoS of their topics."""

from __future__ import annotations

import array
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CompressedImage, Image, PointCloud2, PointField
from std_msgs.msg import Header
from vision_msgs.msg import Detection2D, Detection2DArray, LabelInfo, ObjectHypothesisWithPose, VisionClass

from multi_dnn_ros.vision.ground import GroundPoints
from multi_dnn_ros.vision.results import NO_CLASS, Detections, InstanceMasks, Lanes, Mask

#: Results: reliable, so that reliable and best-effort subscriptions receive them.
RESULTS = QoSProfile(depth=10)
#: Images: a slow subscriber receives the newest one.
IMAGES = QoSProfile(depth=1)
#: Kept for late subscribers.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
#: All fields have the same type, which sensor_msgs_py.point_cloud2.read_points_numpy requires.
POINT_FIELDS = ("u", "v", "lane", "score")
GROUND_FIELDS = ("x", "y", "z", "lane", "score")
#: Quality of overlays; with it, docs/overlay.png (960x540) takes 93 kB.
_JPEG_QUALITY = 85


def message_class(msgtype: str) -> Any:
    """The class of a message type such as ``sensor_msgs/msg/Image``. Raises LookupError: the type is not installed."""
    package, _, name = msgtype.replace("/msg/", "/").partition("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"message type {msgtype} is not installed") from error


def detections_message(result: Detections | InstanceMasks, header: Header) -> Detection2DArray:
    """vision_msgs/Detection2DArray, sorted by descending score, boxes in pixels of the camera image.

    class_id is the class number in decimal, the same as in :func:`label_info_message`, because names need not be
    unique. id is the identity of a tracked object in decimal, otherwise empty.
    """
    detections = result.detections if isinstance(result, InstanceMasks) else result
    message = Detection2DArray(header=header)
    message.detections = [
        _detection(box, score, str(class_id), header)
        for box, score, class_id in zip(
            detections.boxes.tolist(), detections.scores.tolist(), detections.class_ids.tolist(), strict=True
        )
    ]
    if detections.ids is not None:
        for detection, identity in zip(message.detections, detections.ids.tolist(), strict=True):
            detection.id = str(identity) if identity else ""
    return message


def label_info_message(labels: Sequence[str], threshold: float, header: Header) -> LabelInfo:
    """vision_msgs/LabelInfo: the name of each class number. threshold: minimum score of a detection."""
    classes = [VisionClass(class_id=index, class_name=name) for index, name in enumerate(labels)]
    return LabelInfo(header=header, class_map=classes, threshold=threshold)


def class_names(label_info: Any) -> dict[str, str]:
    """Class names of a vision_msgs/LabelInfo by the class_id of a detection."""
    return {str(entry.class_id): entry.class_name for entry in label_info.class_map}


def mask_message(result: Lanes | Mask | InstanceMasks, header: Header) -> Image:
    """sensor_msgs/Image mono8: each pixel is the number of its lane line (0: none), of its class (255: none), or the
    position of its box in the Detection2DArray, from 1 (0: none).
    """
    return image_message(result.mask if isinstance(result, Lanes) else result.pixels, "mono8", header)


def area_mask_message(mask: Mask, header: Header) -> Image:
    """sensor_msgs/Image mono8: 255 inside the area, 0 outside."""
    return image_message(np.where(mask.pixels == NO_CLASS, np.uint8(0), np.uint8(255)), "mono8", header)


def lane_points_message(lanes: Lanes, header: Header) -> PointCloud2:
    """sensor_msgs/PointCloud2 of float32: u, v (pixels of the camera image), lane (number from the left), score."""
    return _cloud(_lane_points(lanes), POINT_FIELDS, header)


def lane_ground_message(lanes: Lanes, header: Header, project: Callable[[Any], GroundPoints]) -> PointCloud2:
    """sensor_msgs/PointCloud2 of float32: x, y, z (metres, in the frame of the header), lane and score as in
    :func:`lane_points_message`. Points that are not on the ground within the range are left out.
    """
    points = _lane_points(lanes)
    ground = project(points[:, :2])
    return _cloud(np.column_stack([ground.points, points[:, 2:]])[ground.kept], GROUND_FIELDS, header)


def _lane_points(lanes: Lanes) -> npt.NDArray[np.float64]:
    """(N, 4) POINT_FIELDS of the points of all lines."""
    rows = [
        np.column_stack([lane.points, np.tile(np.array([lane.number, lane.score]), (len(lane.points), 1))])
        for lane in lanes.lanes
    ]
    return np.concatenate(rows).astype(np.float64) if rows else np.zeros((0, len(POINT_FIELDS)))


def _cloud(values: npt.NDArray[np.float64], names: Sequence[str], header: Header) -> PointCloud2:
    """(N, F) as a PointCloud2 of float32, one field for each name."""
    points = values.astype("<f4")
    message = PointCloud2(header=header, height=1, width=len(points), is_bigendian=False, is_dense=True)
    message.fields = [
        PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
        for index, name in enumerate(names)
    ]
    message.point_step = 4 * len(names)
    message.row_step = message.point_step * len(points)
    message.data = _bytes(points)
    return message


def image_message(pixels: npt.NDArray[np.uint8], encoding: str, header: Header) -> Image:
    """(H, W) or (H, W, C) uint8 as sensor_msgs/Image without padding."""
    height, width = pixels.shape[:2]
    message = Image(header=header, height=height, width=width, encoding=encoding, is_bigendian=0)
    message.step = pixels.size // height
    message.data = _bytes(pixels)
    return message


def jpeg_message(pixels: npt.NDArray[np.uint8], header: Header) -> CompressedImage:
    """(H, W, 3) uint8 RGB as sensor_msgs/CompressedImage."""
    encoded = cv2.imencode(".jpg", pixels[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))[1]
    return CompressedImage(header=header, format="jpeg", data=_bytes(encoded))


def _detection(box: Sequence[float], score: float, class_id: str, header: Header) -> Detection2D:
    x1, y1, x2, y2 = box
    detection = Detection2D(header=header)
    detection.bbox.center.position.x = (x1 + x2) / 2
    detection.bbox.center.position.y = (y1 + y2) / 2
    detection.bbox.size_x = x2 - x1
    detection.bbox.size_y = y2 - y1
    hypothesis = ObjectHypothesisWithPose()
    hypothesis.hypothesis.class_id = class_id
    hypothesis.hypothesis.score = score
    detection.results.append(hypothesis)
    return detection


def _bytes(values: npt.NDArray[np.generic]) -> array.array[int]:
    """The bytes as array.array, the type of rclpy's uint8[] fields; it checks other types element by element."""
    data = array.array("B")
    data.frombytes(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return data
