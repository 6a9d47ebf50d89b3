"""Compares the shapes of a network's outputs with those that a decoder reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Length of an axis: a number; a name for any length, which is the same wherever the name occurs; or a name and a
#: number that is added to it: ("classes", 4) means classes + 4.
Axis = int | str | tuple[str, int]
Pattern = tuple[Axis, ...]
#: Strides of exports with several feature maps: of most detectors, their "P6" variants, the "tiny" ones of YOLOv3.
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (16, 32))


@dataclass(frozen=True)
class Layout:
    """What is known about the outputs before the network runs.

    shapes: one per output, in order; 0 is an axis of unknown length. size: (width, height) of the input; None:
    unknown. classes: number of class names that are known; 0: unknown.
    """

    shapes: tuple[tuple[int, ...], ...]
    size: tuple[int, int] | None = None
    classes: int = 0

    def __str__(self) -> str:
        return ", ".join(shape_text(shape) for shape in self.shapes)


@dataclass(frozen=True)
class Match:
    """A decoder reads these outputs.

    certainty: EXACT, LIKELY or POSSIBLE; of several decoders the most certain one is chosen. why: the reason, for
    messages. classes: number of class names that the decoder needs; 0: any number.
    """

    certainty: int
    why: str
    classes: int = 0


#: EXACT: the number of rows is what follows from the input size. LIKELY: the shape is distinctive. POSSIBLE:
#: the shape fits, but nothing in it is specific to the decoder.
EXACT, LIKELY, POSSIBLE = 3, 2, 1


@dataclass(frozen=True)
class Difference:
    """A decoder does not read these outputs. text: what differs. distance: above 0, larger if more differs."""

    text: str
    distance: float = 1.0


class Bound(NamedTuple):
    """axes: lengths by name, 0 for an unknown one. order: order[i] is the output that pattern i describes."""

    axes: Counter[str]
    order: tuple[int, ...]


def match(layout: Layout, patterns: Sequence[Pattern]) -> Bound | Difference:
    """Compare the outputs with `patterns`, in any order. If several orders fit, the first one is taken, which is the
    given order if that fits; if none fits, the difference is that of the nearest order. An axis `classes` must be as
    long as there are class names.
    """
    count, found = len(patterns), len(layout.shapes)
    if found != count:
        plural, expected = "" if count == 1 else "s", ", ".join(map(pattern_text, patterns))
        return Difference(f"{count} output{plural} {expected} expected, found {found}", 8.0 * abs(found - count))
    nearest: Difference | None = None
    for order in permutations(range(count)):
        bound = _in_order(layout, patterns, order)
        if isinstance(bound, Bound):
            return check_classes(layout, bound.axes["classes"]) or bound
        if nearest is None or bound.distance < nearest.distance:
            nearest = bound
    assert nearest is not None  # a decoder reads at least one output
    return nearest


def check_classes(layout: Layout, classes: int) -> Difference | None:
    """None if there are as many class names as classes in the outputs, or one of the two numbers is unknown."""
    if layout.classes and classes and layout.classes != classes:
        plural = "" if layout.classes == 1 else "s"
        return Difference(f"{classes} classes in the outputs, but {layout.classes} class name{plural}", 0.5)
    return None


def match_any(layout: Layout, variants: Sequence[Sequence[Pattern]]) -> Bound | Difference:
    """As :func:`match`, for outputs of one of several forms."""
    found = [match(layout, patterns) for patterns in variants]
    return min(found, key=lambda each: each.distance if isinstance(each, Difference) else 0.0)


def _in_order(layout: Layout, patterns: Sequence[Pattern], order: tuple[int, ...]) -> Bound | Difference:
    axes: Counter[str] = Counter()
    distance, problems = 0.0, []
    for pattern, output in zip(patterns, order, strict=True):
        shape = layout.shapes[output]
        if len(shape) != len(pattern):
            distance += 3.0 * abs(len(shape) - len(pattern))
            problems.append(f"output {output} is {shape_text(shape)}, expected {pattern_text(pattern)}")
            continue
        for number, (expected, length) in enumerate(zip(pattern, shape, strict=True)):
            if length and not _bind(axes, expected, length):
                distance += 1.0
                problems.append(f"axis {number} of output {output} is {length}, expected {_axis_text(expected, axes)}")
    return Difference("; ".join(problems), distance) if problems else Bound(axes, order)


def _bind(axes: Counter[str], expected: Axis, length: int) -> bool:
    if isinstance(expected, int):
        return length == expected
    name, more = (expected, 0) if isinstance(expected, str) else expected
    if length - more < 1:
        return False
    if not axes[name]:
        axes[name] = length - more
    return axes[name] == length - more


def shape_text(shape: Sequence[int]) -> str:
    """(1, 84, 0) as (1, 84, ?)."""
    return f"({', '.join(str(axis) if axis else '?' for axis in shape)})"


def pattern_text(pattern: Pattern) -> str:
    """A pattern in the form of signatures: (1, N, 4 + classes)."""
    return f"({', '.join(_axis_text(axis, {}) for axis in pattern)})"


def _axis_text(axis: Axis, axes: Mapping[str, int]) -> str:
    if isinstance(axis, int):
        return str(axis)
    name, more = (axis, 0) if isinstance(axis, str) else axis
    text = f"{more} + {name}" if more else name
    return f"{text} = {axes[name] + more}" if axes.get(name) else text


def cells(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """(columns, rows) of a feature map of this stride. size: (width, height) of the input."""
    return ceil(size[0] / stride), ceil(size[1] / stride)


def row_count(size: tuple[int, int], strides: Sequence[int]) -> int:
    """Number of cells of all feature maps together."""
    return sum(columns * rows for columns, rows in (cells(size, stride) for stride in strides))


def strides_of(
    size: tuple[int, int] | None, count: int, per_cell: int = 1, allowed: Sequence[tuple[int, ...]] = STRIDES
) -> tuple[int, ...] | None:
    """Strides with which an input of `size` has `count` rows, `per_cell` per cell; None if none of `allowed` fits."""
    if size is None:
        return None
    return next((strides for strides in allowed if per_cell * row_count(size, strides) == count), None)


def points(size: tuple[int, int], strides: Sequence[int]) -> npt.NDArray[np.float32]:
    """(N, 3) float32 column, row and stride of each cell, feature map by feature map, row by row."""
    found = []
    for stride in strides:
        columns, rows = cells(size, stride)
        row, column = np.divmod(np.arange(columns * rows), columns)
        found.append(np.stack([column, row, np.full_like(row, stride)], axis=1))
    return np.concatenate(found).astype(np.float32)
