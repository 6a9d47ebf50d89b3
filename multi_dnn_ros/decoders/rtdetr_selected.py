"""RT-DETR as Ultralytics exports it since May 2026: the network selects its boxes."""

from __future__ import annotations

from multi_dnn_ros.decoders.end_to_end import EndToEndDecoder
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout, Match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, from_shares


class RtDetrSelectedDecoder(EndToEndDecoder):
    """(1, queries, 6): cx, cy, w, h as shares of the input, score, class. No non-maximum suppression is applied.

    github.com/ultralytics/ultralytics/pull/24403. The shape is that of `end_to_end`, so only the metadata of the file
    tells them apart.
    """

    name = "rtdetr_selected"
    signature = "(1, queries, 6)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = super().recognize(layout)
        if isinstance(found, Difference):
            return found
        return Match(POSSIBLE, "rows of 6 numbers, if the first four are shares of the input")

    def corners(self, rows: Floats) -> Floats:
        return from_shares(rows, self.preprocess)


SPEC = DecoderSpec(
    "rtdetr_selected",
    RtDetrSelectedDecoder,
    signature="(1, queries, 6): box as shares of the input, score, class (RT-DETR by Ultralytics since May 2026)",
    recognize=RtDetrSelectedDecoder.recognize,
)
