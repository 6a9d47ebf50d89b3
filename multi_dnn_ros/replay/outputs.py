"""The messages of a result, with the topic names of the live node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from std_msgs.msg import Header

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.replay.frame_order import FrameOutcome
from multi_dnn_ros.ros.result_messages import LabelInfo, label_info_message
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image
from multi_dnn_ros.vision.result_kind import Layer, ResultKind
from multi_dnn_ros.vision.results import results_by_name


def result_messages(kinds: Mapping[str, ResultKind], result: Result, header: Header) -> Iterator[tuple[str, Any]]:
    """Topic below `~/<camera>/` and message, for each message of an inference. kinds: the kind of each result, by name.

    Raises TypeError for a result that is not of its kind.
    """
    for name, output in results_by_name(result.dnn, result.output).items():
        kinds[name].check(name, output)
        for topic in kinds[name].topics:
            yield f"{name}/{topic.name}", topic.message(output, header)


def label_messages(
    labels: Mapping[str, tuple[str, ...]], thresholds: Mapping[str, float], header: Header
) -> Iterator[tuple[str, Any]]:
    """Topic below `~/` and vision_msgs/LabelInfo, for each detector; none if that type is not installed.

    labels, thresholds: class names and score threshold of each detector.
    """
    if LabelInfo is not None:
        for dnn, names in labels.items():
            yield f"{dnn}/label_info", label_info_message(names, thresholds[dnn], header)


def decode_message(message: Any, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    """An Image or CompressedImage as (H, W, 3) uint8 RGB. Raises FrameError."""
    if hasattr(message, "format"):
        return decode_compressed(message, settings)
    return decode_image(message, settings)


def drawn(kinds: Mapping[str, ResultKind], outcome: FrameOutcome) -> npt.NDArray[np.uint8]:
    """The frame's image with its results on it, (H, W, 3) uint8 RGB. kinds: the kind of each result, by name."""
    layers = [
        Layer(name, kinds[name], output)
        for end in outcome.in_order()
        if isinstance(end, Result)
        for name, output in results_by_name(end.dnn, end.output).items()
    ]
    return draw(outcome.frame.image(), layers)
