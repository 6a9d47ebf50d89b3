"""A row of the table of models: a network, the program or formula that its results are compared with, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from reference_decoding import Candidate

#: The network's input (1, 3, h, w) float32 -> candidates in pixels of the input.
Boxes = Callable[[np.ndarray], Sequence[Candidate]]


@dataclass(frozen=True)
class Model:
    """A network ready to be compared.

    model: value of parameter `model`. parameters: other parameters that it needs. boxes: the reference, for detectors;
    suppress: whether non-maximum suppression follows it. lines: (input, (H, W) of the image, score threshold) -> points
    of each line in pixels of the image. mask: the input -> the pixels (h, w) that belong to lines. One of boxes, lines
    and mask is given.
    """

    model: str
    parameters: dict[str, Any] = field(default_factory=dict)
    boxes: Boxes | None = None
    suppress: bool = True
    lines: Callable[[np.ndarray, tuple[int, int], float], list[Any]] | None = None
    mask: Callable[[np.ndarray], np.ndarray] | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table.

    name: that of the model. source: where its weights come from. trained: whether they are trained. reference: what the
    model is compared with. prepare: called with the folder of the weights and a folder for files to be written, returns
    the model or raises any error.
    """

    name: str
    source: str
    licence: str
    trained: bool
    reference: str
    prepare: Callable[[Path, Path], Model]
