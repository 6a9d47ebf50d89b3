"""Result kinds: what a DNN's results are, how they are published, drawn and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Topic:
    """One topic of a result kind, ``~/<camera>/<dnn>/<name>``.

    msgtype: such as "sensor_msgs/msg/Image". to_message: (result, header) -> message, called in the node's process; as
    "module:function" it is imported with the first node that publishes it, so that the result kind can be used where
    no message package is. header: std_msgs/Header of the image, which the message must carry. picture: messages as
    large as the image, which are published last, in queues of depth 1. Messages are made only for subscribed topics.
    """

    name: str
    msgtype: str
    to_message: Callable[[Any, Any], Any] | str
    picture: bool = False

    @cached_property
    def message(self) -> Callable[[Any, Any], Any]:
        """`to_message`, imported where it is a reference. Raises what importing raises."""
        function: Callable[[Any, Any], Any] = (
            extensions.load(self.to_message) if isinstance(self.to_message, str) else self.to_message
        )
        return function


@dataclass(frozen=True)
class ResultKind:
    """What is known about one kind of results. Used in the node's process: its module must not import PyTorch.

    name: as decoders name it (DecoderSpec.result_kind).
    type: class of the results. They travel from the engine process to the node's by pickle, so the class is defined at
    the top of a module that does not import PyTorch; arrays are numpy's.
    topics: at least one.
    draw: (canvas, layers of this kind, scale) draws all results of one image into canvas, (H, W, 3) uint8 RGB, in
    place; None: they are not drawn. scale: of lines and text, 1 for an image of 900 pixels.
    draw_order: kinds with a smaller number are drawn first, below the others.
    has_labels: whether class names are published on ``~/<dnn>/label_info``.
    truth: what they are compared with, by the name of a task of :mod:`multi_dnn_ros.training.data` ("boxes", "lanes");
    empty: they cannot be scored.
    score: (pairs of result and truth, labels) -> scores by name, or where to find it as "module:function".
    """

    name: str
    type: type
    topics: tuple[Topic, ...]
    draw: Callable[[Image, Sequence[Layer], float], None] | None = None
    draw_order: int = 1
    has_labels: bool = False
    truth: str = ""
    score: Callable[[Iterable[tuple[Any, Any]], Sequence[str]], Mapping[str, float]] | str | None = None

    @property
    def msgtypes(self) -> dict[str, str]:
        """Message type of each topic, by its name."""
        return {topic.name: topic.msgtype for topic in self.topics}

    def check(self, dnn: str, output: Any) -> None:
        """Raise TypeError, which names the DNN, unless `output` is a result of this kind."""
        if not isinstance(output, self.type):
            found, expected = type(output).__name__, self.type.__name__
            raise TypeError(f"DNN {dnn} returned a {found}; expected a {expected} (result kind {self.name})")


@dataclass(frozen=True)
class Layer:
    """What one DNN found. latency_ms: end to end; None: not shown. stale: it is of an earlier frame and drawn thin."""

    dnn: str
    kind: ResultKind
    output: Any
    latency_ms: float | None = None
    stale: bool = False


RESULT_KINDS = extensions.Registry(ResultKind, extensions.RESULT_KINDS)
