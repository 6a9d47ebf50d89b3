"""Registry of decoders, which convert the raw outputs of a DNN to results, and the choice of one by output shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common import extensions
from multi_dnn_ros.decoders.layout import LIKELY, Difference, Layout, Match

if TYPE_CHECKING:
    from multi_dnn_ros.decoders.base import Decoder


@dataclass(frozen=True)
class DecoderSpec:
    """Properties of a decoder that are known before it is created. Used in the engine process.

    name: value of the parameter `dnn.<dnn>.decoder`.
    factory: (preprocess, labels, *, keep, score_threshold, own_threshold, iou_threshold, max_detections) -> Decoder,
    usually the Decoder's class; see :class:`multi_dnn_ros.decoders.base.Decoder` for the arguments.
    signature: shapes of the outputs that it reads, for documentation, such as "(1, 4 + classes, N)". Decoder.check,
    called during configuration, decides whether a DNN's outputs fit.
    result_kind: name of its kind of results. preprocess: arguments of Preprocess for models without such metadata.
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
    def of(cls, decoder: type[Decoder], **fields: Any) -> DecoderSpec:
        """The specification of a Decoder's class, whose attributes are the defaults."""
        own = {name: getattr(decoder, name) for name in ("signature", "result_kind", "default_labels", "recognize")}
        return cls(decoder.name, decoder, **{**own, **fields})


DECODERS = extensions.Registry(DecoderSpec, extensions.DECODERS)


@dataclass(frozen=True)
class Recognition:
    """matches: decoders that read the outputs, by name, the chosen one first. differences: the others, nearest first.

    Matches are in order of certainty, and equally certain ones in the order of the registry, so that the same shapes
    always give the same decoder.
    """

    layout: Layout
    matches: tuple[tuple[str, Match], ...]
    differences: tuple[tuple[str, Difference], ...]

    @property
    def chosen(self) -> str:
        """Name of the decoder; empty: none reads these outputs."""
        return self.matches[0][0] if self.matches else ""

    @property
    def decided(self) -> bool:
        """Whether the shapes are distinctive enough to use the chosen decoder if none is configured."""
        return bool(self.matches) and self.matches[0][1].certainty >= LIKELY

    @property
    def why(self) -> str:
        """One sentence about the choice, which names other decoders that would fit, or the nearest ones."""
        if not self.matches:
            nearest = "; ".join(
                f"{name} reads {DECODERS.get(name).signature}: {difference.text}"
                for name, difference in self.differences[:3]
            )
            return f"no decoder reads outputs {self.layout}; nearest: {nearest}"
        (name, match), *others = self.matches
        text = f"outputs {self.layout} are read as '{name}': {match.why}"
        if others:
            text += "; other decoders that fit: " + ", ".join(f"{other} ({found.why})" for other, found in others)
        return text


def recognize(layout: Layout, result_kind: str = "") -> Recognition:
    """Compare the outputs with every decoder that can be recognized. result_kind: kind of results; empty: any."""
    matches, differences = [], []
    for spec in DECODERS.usable():
        if spec.recognize is None or spec.takes_detector or result_kind not in ("", spec.result_kind):
            continue
        found = spec.recognize(layout)
        if isinstance(found, Match) and _is_one_map(layout):
            found = Difference("a map in the proportions of the image, such as class numbers or depths", 0.1)
        if isinstance(found, Match):
            matches.append((spec.name, found))
        else:
            differences.append((spec.name, found))
    matches.sort(key=lambda entry: -entry[1].certainty)
    differences.sort(key=lambda entry: entry[1].distance)
    return Recognition(layout, tuple(matches), tuple(differences))


def _is_one_map(layout: Layout) -> bool:
    """Whether the only output is (1, h, w), as large as the image or a whole number of times smaller.

    Its numbers may be classes or depths; as rows of boxes it would have hundreds of classes.
    """
    if layout.size is None or len(layout.shapes) != 1 or len(layout.shapes[0]) != 3:
        return False
    _, rows, columns = layout.shapes[0]
    width, height = layout.size
    return min(rows, columns) > 1 and width % columns == height % rows == 0 and width // columns == height // rows
