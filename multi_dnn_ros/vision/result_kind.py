"""Result kinds: what a DNN's results are, how they are published, drawn and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions
from multi_dnn_ros.vision.view import Window

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Topic:
    """One topic of a result kind, ``~/<camera>/<dnn>/<name>``.

    msgtype: such as "sensor_msgs/msg/Image". to_message: (result, header) -> message, called in the node's process. A
    "module:function" is imported when a node first publishes on the topic, so that the result kind can be used without
    the message package. header: std_msgs/Header of the image, to be used for the message. picture: messages are as
    large as the image; they are published last, with a queue depth of 1. Messages are created only for topics with
    subscribers.
    """

    name: str
    msgtype: str
    to_message: Callable[..., Any] | str
    picture: bool = False

    @cached_property
    def message(self) -> Callable[..., Any]:
        """`to_message`, imported if it is "module:function". Raises what the import raises."""
        function: Callable[..., Any] = extensions.loaded(self.to_message)
        return function


@dataclass(frozen=True)
class GroundTopic(Topic):
    """A topic of a result kind with results on the ground, in metres.

    to_message: (result, header, project) -> message. header: std_msgs/Header with the stamp of the image and the frame
    of the vehicle. project: pixels (N, 2) of the image -> points on the ground (GroundPoints); called at most once.
    Messages are created only while the camera's calibration and pose are known, too.
    """


@dataclass(frozen=True)
class ResultKind:
    """One kind of results: how they are published, drawn and scored.

    Used in the node's process: its module must not import PyTorch.

    name: value of DecoderSpec.result_kind.
    type: class of the results. They are pickled from the engine process to the node's, so the class must be defined at
    the top level of a module that does not import PyTorch; arrays are numpy's.
    topics: at least one.
    draw: (canvas, layers of this kind, scale) draws all results of one image on canvas, (H, W, 3) uint8 RGB, in place;
    None: they are not drawn. scale: factor for lines and text, 1 for an image whose shorter side is 900 pixels.
    draw_order: kinds with a smaller number are drawn first, below the others.
    has_labels: whether class names are published on ``~/<dnn>/label_info``.
    truth: ground truth that they are compared with, a task of :mod:`multi_dnn_ros.training.data` ("boxes", "lanes");
    "": they cannot be scored.
    place: (result of a window, window, (H, W) of the image) -> the result in pixels of the image, for DNNs with
    parameter `crop`; None: the parameter is refused.
    score: (pairs of result and ground truth, labels) -> scores by name, or "module:function"; None: no scores.
    ground_topics: topics with results on the ground, in metres; a running node publishes them.
    """

    name: str
    type: type
    topics: tuple[Topic, ...]
    draw: Callable[[Image, Sequence[Layer], float], None] | None = None
    draw_order: int = 1
    has_labels: bool = False
    truth: str = ""
    score: Callable[[Iterable[tuple[Any, Any]], Sequence[str]], Mapping[str, float]] | str | None = None
    place: Callable[[Any, Window, tuple[int, int]], Any] | None = None
    ground_topics: tuple[GroundTopic, ...] = ()

    @property
    def msgtypes(self) -> dict[str, str]:
        """Message type of each topic, by its name."""
        return {topic.name: topic.msgtype for topic in self.topics}

    @property
    def ground_msgtypes(self) -> dict[str, str]:
        """Message type of each topic on the ground, by its name."""
        return {topic.name: topic.msgtype for topic in self.ground_topics}

    def check(self, dnn: str, output: Any) -> None:
        """Raise TypeError, which names the DNN, if `output` is not a result of this kind."""
        if not isinstance(output, self.type):
            found, expected = type(output).__name__, self.type.__name__
            raise TypeError(f"DNN {dnn} returned a {found}; expected a {expected} (result kind {self.name})")


@dataclass(frozen=True)
class Layer:
    """A DNN's result to be drawn. latency_ms: end to end; None: not shown."""

    dnn: str
    kind: ResultKind
    output: Any
    latency_ms: float | None = None


RESULT_KINDS = extensions.Registry(ResultKind, extensions.RESULT_KINDS)
