"""Images and the ground truth of generated scenes as messages."""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.camera.encodings import Encoded, compress, encode
from multi_dnn_ros.ros.result_messages import detections_message, label_info_message
from multi_dnn_ros.vision.results import Detections

if TYPE_CHECKING:
    from multi_dnn_ros.training.scenes import Scene


@dataclass(frozen=True)
class CameraFormat:
    """Topic and format of the published images.

    frame_id: that of their headers. compressed: whether they are CompressedImage messages. encoding: encoding of raw
    images. image_format: format of compressed images, jpeg or png. size: (width, height) in pixels; None keeps the size
    of the source. qos: name of the QoS profile.
    """

    topic: str
    frame_id: str
    compressed: bool = False
    encoding: str = "rgb8"
    image_format: str = "jpeg"
    size: tuple[int, int] | None = None
    qos: str = "default"


def image_message(pixels: npt.NDArray[np.uint8], header: Header, camera_format: CameraFormat) -> Any:
    """An Image or CompressedImage of (H, W, 3) uint8 RGB pixels."""
    if camera_format.compressed:
        data = compress(pixels, camera_format.image_format)
        text = f"rgb8; {camera_format.image_format} compressed bgr8"  # as image_transport's publisher writes it
        return CompressedImage(header=header, format=text, data=array.array("B", data.tobytes()))
    return _image(header, encode(pixels, camera_format.encoding))


def truth_message(scene: Scene, header: Header) -> Detection2DArray:
    """The boxes of a generated scene as detections of score 1."""
    from multi_dnn_ros.training.scenes import LABELS

    scores = np.ones(len(scene.boxes), np.float32)
    return detections_message(Detections(scene.boxes, scores, scene.class_ids, tuple(LABELS)), header)


def truth_labels_message(header: Header) -> Any:
    """A vision_msgs/LabelInfo with the class names of :func:`truth_message`."""
    from multi_dnn_ros.training.scenes import LABELS

    return label_info_message(LABELS, 1.0, header)


def _image(header: Header, image: Encoded) -> Image:
    message = Image(header=header, height=image.height, width=image.width, encoding=image.encoding, step=image.step)
    # rclpy accepts an array.array without checking every byte.
    message.data = array.array("B", image.data.tobytes())
    return message
