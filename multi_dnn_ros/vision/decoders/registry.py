"""Decoders by name: what turns the raw outputs of a DNN into results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common import extensions

if TYPE_CHECKING:
    from multi_dnn_ros.vision.decoders.base import Decoder
    from multi_dnn_ros.vision.decoders.layout import Difference, Layout, Match


@dataclass(frozen=True)
class DecoderSpec:
    """What is known about a decoder before it is made. Used in the engine process.

    name: value of the parameter `dnn.<dnn>.decoder`.
    factory: (preprocess, labels, *, keep, score_threshold, own_threshold, iou_threshold, max_detections) -> Decoder,
    usually the Decoder's class; see :class:`multi_dnn_ros.vision.decoders.base.Decoder` for the arguments.
    signature: shapes of the outputs that it reads, for people, such as "(1, 4 + classes, N)". Whether outputs fit is
    decided by Decoder.check, which is called while configuring.
    result_kind: name of the result kind of what it returns.
    preprocess: keyword arguments of Preprocess for models that do not say how they were trained.
    default_labels: class names of a model of one class that brings none.
    takes_detector: the factory gets the network itself before the other arguments and takes it apart: the layers that
    run on the device are the decoder's attribute `core`. A model source says so by Source.detector.
    loss: for `multi-dnn retrain`: (dnn, source) -> loss, or where to find it as "module:function"; None: without one,
    the network can only be taught by another.
    recognize: whether the decoder reads outputs of such shapes, and how certain that is. It chooses the decoder of a
    model that does not name one; None: the decoder is used only where it is named.
    """

    name: str
    factory: Callable[..., Decoder]
    signature: str
    result_kind: str = "detections"
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    default_labels: tuple[str, ...] = ()
    takes_detector: bool = False
    loss: Callable[..., Any] | str | None = None
    recognize: Callable[[Layout], Match | Difference] | None = None


DECODERS = extensions.Registry(DecoderSpec, extensions.DECODERS)
