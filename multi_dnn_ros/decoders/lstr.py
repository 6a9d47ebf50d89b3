"""LSTR: lane lines as curves, in a model of a camera above a flat road."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from multi_dnn_ros.decoders.layout import EXACT, Difference, Layout, Match, match
from multi_dnn_ros.decoders.point_lanes import Floats, clipped, in_source, inside, lanes_of_points
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RecognizedDecoder
from multi_dnn_ros.vision.results import Lanes

#: Points per line.
_POINTS = 48
#: Numbers of a curve: its two ends, then the coefficients.
_NUMBERS = 8
#: Minimum number of points of a lane.
_MIN_POINTS = 2
#: Number of outputs of the public exports: logits and curves; or also those of the layer before the last, and attention
#: weights.
_COUNTS = (2, 5)


class LstrDecoder(RecognizedDecoder):
    """(1, lines, 2) logits of "none" and "lane", (1, lines, 8) curves -> Lanes; later outputs are not read.

    A curve has its two ends y0 and y1, then k, f, m, n, b, c: x = k / (y - f)^2 + m / (y - f) + n + b y - c, all as
    shares of the image (arXiv:2011.04233, github.com/liuruijin17/LSTR). The score is the softmax of the two logits;
    `iou_threshold` has no effect, as each line is found once.
    """

    name = "lstr"
    signature = "(1, lines, 2), (1, lines, 8)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        if len(layout.shapes) not in _COUNTS:
            return Difference(f"{_COUNTS[0]} or {_COUNTS[1]} outputs expected, found {len(layout.shapes)}", 8.0)
        found = match(Layout(layout.shapes[:2]), [(1, "lines", 2), (1, "lines", _NUMBERS)])
        if isinstance(found, Difference):
            return found
        return Match(EXACT, f"{found.axes.get('lines') or '?'} curves of {_NUMBERS} numbers")

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Lanes:
        logits, curves = sorted((output[0].double().numpy() for output in outputs[:2]), key=lambda rows: rows.shape[1])
        scores = 1.0 / (1.0 + np.exp((logits[:, 0] - logits[:, 1]).clip(-700, 700)))
        found = []
        for curve, score in zip(curves, scores, strict=True):
            if score < self.score_threshold:
                continue
            x, y = _points(curve)
            u, v = in_source(x * self.preprocess.width, y * self.preprocess.height, self.preprocess, source_size)
            seen = inside(u, v, source_size)
            points = np.stack([u[seen], v[seen]], axis=1)
            if len(points) >= _MIN_POINTS:
                found.append((clipped(points, source_size), float(score)))
        return lanes_of_points(found, source_size, self.max_detections)


def _points(curve: Floats) -> tuple[Floats, Floats]:
    """x and y of the points of a curve (8,), from the bottom up, without those at its pole."""
    first, last, k, f, m, n, b, c = curve.clip(-1e6, 1e6)
    y = np.linspace(max(first, last), min(first, last), _POINTS)
    y = y[np.abs(y - f) > 1e-9]
    away = y - f
    return k / away**2 + m / away + n + b * y - c, y


SPEC = DecoderSpec(
    "lstr",
    LstrDecoder,
    signature="(1, lines, 2) logits, (1, lines, 8) curves; three further outputs are not read (LSTR)",
    result_kind="lanes",
    default_labels=("lane",),
    # sample/tusimple.py and test/images.py of the repository: OpenCV's image, blue first, stretched; mean and deviation
    # of db/tusimple.py.
    preprocess={
        "bgr": True,
        "mean": (0.40789654, 0.44719302, 0.47026115),
        "std": (0.28863828, 0.27408164, 0.27809835),
    },
    recognize=LstrDecoder.recognize,
)
