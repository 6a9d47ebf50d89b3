"""TwinLiteNet: drivable area and lane lines as two maps; the lines are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from multi_dnn_ros.decoders.base import TwoParts
from multi_dnn_ros.decoders.lane import LaneDecoder
from multi_dnn_ros.decoders.layout import EXACT, POSSIBLE, Difference, Layout, Match, match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.results import OutputError

_MAP = (1, 2, "h", "w")


class TwinLiteNetDecoder(LaneDecoder):
    """(1, 2, h, w) logits of the drivable area, then (1, 2, h, w) of lane lines, "none" first in both -> Lanes.

    github.com/chequanghuy/TwinLiteNet, arXiv:2307.10705. Decoder `drivable` reads the drivable area.
    """

    name = "twinlitenet"
    signature = "(1, 2, h, w) twice"
    #: The map that is decoded, by its number among the maps.
    map_number: ClassVar[int] = 1

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """Whether this decoder reads such outputs: two maps of two classes, of the same size."""
        found = match(layout, [_MAP, _MAP])
        if isinstance(found, Difference):
            return found
        whole = layout.size == (found.axes.get("w", 0), found.axes.get("h", 0))
        return Match(EXACT if whole else POSSIBLE, "two maps of two classes")

    def check(self, outputs: Sequence[Tensor]) -> None:
        layout = Layout(tuple(tuple(output.shape) for output in outputs))
        found = self.recognize(layout)
        if isinstance(found, Difference):
            raise OutputError(
                f"outputs of shapes {layout}, but decoder {self.name} reads {self.signature}: {found.text}"
            )
        if len(self.labels) != 2:
            raise OutputError(
                f"decoder {self.name} needs 2 class names, none and {self.noun}; labels has {len(self.labels)}"
            )

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Any:
        return super().decode(_map_of(outputs, self.map_number), source_size)

    def in_two_parts(self) -> TwoParts:
        return _OneMap(super().in_two_parts(), self.map_number)


def _map_of(outputs: Sequence[Tensor], number: int) -> Sequence[Tensor]:
    """One of the maps (1, 2, h, w) among the outputs, in a list."""
    return [[output for output in outputs if output.ndim == 4][number]]


class _OneMap:
    """The two parts of a decoder of one map, applied to one of several maps."""

    def __init__(self, parts: TwoParts, number: int) -> None:
        self._parts = parts
        self._number = number

    def condense(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._parts.condense(_map_of(outputs, self._number))

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Any:
        return self._parts.decode(outputs, source_size)


SPEC = DecoderSpec(
    "twinlitenet",
    TwinLiteNetDecoder,
    signature="(1, 2, h, w) of the drivable area, (1, 2, h, w) of lane lines (TwinLiteNet)",
    result_kind="lanes",
    default_labels=("none", "lane"),
    recognize=TwinLiteNetDecoder.recognize,
)
