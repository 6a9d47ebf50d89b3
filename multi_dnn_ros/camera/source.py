"""The interface of image sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from multi_dnn_ros.training.scenes import Scene


class SourceError(ValueError):
    """A source cannot be opened or read; the message names it and says why."""


@dataclass(frozen=True)
class SourceImage:
    """One image. image: (H, W, 3) uint8 RGB. scene: exact ground truth, for generated images."""

    image: npt.NDArray[np.uint8]
    scene: Scene | None = None


class Source(Protocol):
    """A sequence of images that can be iterated repeatedly, unless it is live.

    rate_hz: rate of the source; None if it has none. live: whether it delivers images in real time. notes: problems,
    known after a complete iteration.
    """

    name: str
    rate_hz: float | None
    live: bool
    notes: list[str]

    def items(self) -> Iterator[SourceImage]: ...
