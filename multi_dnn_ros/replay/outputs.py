"""The messages of a result, with the topic names of the live node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Header

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.replay.frame_order import FrameOutcome
from multi_dnn_ros.ros.result_messages import (
    LabelInfo,
    detections_message,
    label_info_message,
    lane_mask_message,
    lane_points_message,
)
from multi_dnn_ros.vision.drawing import Layer, draw
from multi_dnn_ros.vision.image_decoding import decode_compressed, decode_image
from multi_dnn_ros.vision.results import Detections, Lanes


def result_messages(result: Result, header: Header) -> Iterator[tuple[str, Any]]:
    """Topic below `~/<camera>/<dnn>/` and message, for each message of a result."""
    if isinstance(result.output, Lanes):
        yield "mask", lane_mask_message(result.output, header)
        yield "points", lane_points_message(result.output, header)
    elif isinstance(result.output, Detections):
        yield "detections", detections_message(result.output, header)
    else:
        raise TypeError(f"DNN '{result.dnn}' returned a {type(result.output).__name__}; expected Detections or Lanes")


def label_messages(
    labels: Mapping[str, tuple[str, ...]], thresholds: Mapping[str, float], header: Header
) -> Iterator[tuple[str, Any]]:
    """Topic below `~/` and vision_msgs/LabelInfo, for each detector; none where that type is not installed.

    labels, thresholds: class names and score threshold of each detector.
    """
    if LabelInfo is not None:
        for dnn, names in labels.items():
            yield f"{dnn}/label_info", label_info_message(names, thresholds[dnn], header)


def decode_message(message: Any, max_pixels: int) -> npt.NDArray[np.uint8]:
    """An Image or CompressedImage as (H, W, 3) uint8 RGB. Raises FrameError."""
    if hasattr(message, "format"):
        return decode_compressed(message, max_pixels)
    return decode_image(message, max_pixels)


def drawn(outcome: FrameOutcome) -> npt.NDArray[np.uint8]:
    """The frame's image with its results drawn on it, (H, W, 3) uint8 RGB."""
    layers = [Layer(end.dnn, end.output) for end in outcome.in_order() if isinstance(end, Result)]
    return draw(outcome.frame.image(), layers)
