"""Finds the decoder for the outputs of a network by their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from multi_dnn_ros.decoders.layout import LIKELY, Difference, Layout, Match
from multi_dnn_ros.decoders.registry import DECODERS

#: Maximum number of decoders that an error describes.
_NEAREST = 3


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
        """One sentence about the choice, which names other decoders that would fit."""
        if not self.matches:
            return f"no decoder reads outputs {self.layout}; nearest: {self.nearest}"
        (name, match), *others = self.matches
        text = f"outputs {self.layout} are read as '{name}': {match.why}"
        if others:
            text += "; other decoders that fit: " + ", ".join(f"{other} ({found.why})" for other, found in others)
        return text

    @property
    def nearest(self) -> str:
        """The decoders that fit best, each with the difference."""
        return "; ".join(
            f"{name} reads {DECODERS.get(name).signature}: {difference.text}"
            for name, difference in self.differences[:_NEAREST]
        )


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
