"""Registry of decoders, which convert the raw outputs of a DNN to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common import extensions

if TYPE_CHECKING:
    from multi_dnn_ros.decoders.base import Decoder
    from multi_dnn_ros.decoders.layout import Difference, Layout, Match


@dataclass(frozen=True)
class DecoderSpec:
    """Properties of a decoder that are known before it is created. Used in the engine process.

    name: value of the parameter `dnn.<dnn>.decoder`.
    factory: (preprocess, labels, *, keep, score_threshold, own_threshold, iou_threshold, max_detections) -> Decoder,
    usually the Decoder's class; see :class:`multi_dnn_ros.decoders.base.Decoder` for the arguments.
    signature: shapes of the outputs that it reads, for documentation, such as "(1, 4 + classes, N)". Decoder.check,
    called during configuration, decides whether a DNN's outputs fit.
    result_kind: name of its results' kind.
    preprocess: keyword arguments of Preprocess for models without preprocessing metadata.
    default_labels: class names of a model with one class and without labels.
    takes_detector: the factory takes an AnchorHead as its first argument. For model sources that set Source.detector.
    loss: for `multi-dnn retrain`: (dnn, source) -> loss, or "module:function"; None: the network can only be trained by
    distillation from another network.
    recognize: shapes of a model's outputs -> whether the decoder reads them, and how certain that is; it selects the
    decoder of a model that does not name one. None: the decoder is used only if it is named.
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

    @classmethod
    def of(cls, decoder: type[Decoder], signature: str = "", **fields: Any) -> DecoderSpec:
        """The specification of a Decoder's class, whose attributes are the defaults."""
        fields = {"recognize": decoder.recognize, **fields}
        return cls(decoder.name, decoder, signature or decoder.signature, **fields)


DECODERS = extensions.Registry(DecoderSpec, extensions.DECODERS)
