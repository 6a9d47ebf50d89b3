"""Images and the ground truth of generated scenes as messages."""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.camera.encodings import compress, encode
from multi_dnn_ros.ros.result_messages import detections_message
from multi_dnn_ros.vision.results import Detections

if TYPE_CHECKING:
    from multi_dnn_ros.training.scenes import Scene

#: Encodings of CompressedImage messages.
COMPRESSED = ("jpeg", "png")


def image_message(pixels: npt.NDArray[np.uint8], header: Header, encoding: str = "rgb8") -> Any:
    """(H, W, 3) uint8 RGB pixels as a CompressedImage if `encoding` is `jpeg` or `png`, otherwise as an Image.

    Raises ValueError for an unknown encoding, or for a size that the encoding cannot represent.
    """
    if encoding in COMPRESSED:
        text = f"rgb8; {encoding} compressed bgr8"  # as image_transport's publisher writes it
        return CompressedImage(header=header, format=text, data=array.array("B", compress(pixels, encoding).tobytes()))
    step, data = encode(pixels, encoding)
    message = Image(header=header, height=len(pixels), width=pixels.shape[1], encoding=encoding, step=step)
    message.data = array.array("B", data.tobytes())  # which rclpy accepts without checking every byte
    return message


def truth_message(scene: Scene, header: Header) -> Detection2DArray:
    """The boxes of a generated scene as detections of score 1."""
    from multi_dnn_ros.training.scenes import LABELS

    scores = np.ones(len(scene.boxes), np.float32)
    return detections_message(Detections(scene.boxes, scores, scene.class_ids, tuple(LABELS)), header)
