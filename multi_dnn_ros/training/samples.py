"""Images of a data set with their truth, one at a time, and how they are fitted to the input of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.vision.preprocess import Preprocess

Batch = dict[str, Tensor]

#: Maximum number of boxes per image, ignored ones included; a generated scene has fewer than half as many.
MAX_BOXES = 96
#: Class numbers of padding rows, of ignored boxes, and of crowds, which are also ignored: CROWD - k for class k.
NO_BOX, IGNORED, CROWD = -1, -2, -3


@dataclass(frozen=True)
class Sample:
    """An image (H, W, 3) uint8 RGB with one or several kinds of truth.

    label: number of its class. boxes: (N, 4) float32 x1, y1, x2, y2 in pixels of the image; classes: (N,) int64, a
    class, IGNORED or CROWD - k. mask: (h, w) uint8 of any size with the image's aspect ratio, nonzero = lane.
    """

    image: npt.NDArray[np.uint8]
    label: int | None = None
    boxes: npt.NDArray[np.float32] | None = None
    classes: npt.NDArray[np.int64] | None = None
    mask: npt.NDArray[np.uint8] | None = None


class Item(NamedTuple):
    """One image. name: in messages. recording: that of which it is a frame; frames of one recording are nearly equal.
    load: reads it as it is stored; raises DatasetError, which names the file, if it cannot be used. row: returns it
    fitted to an input, if that is stored, too.
    """

    name: str
    recording: str
    load: Callable[[], Sample]
    row: Callable[[], Batch] | None = None


class Rows(Dataset[Batch]):
    """One part of a data set. framing: how an image is fitted to a network's input, without mean and std."""

    def __init__(self, items: Sequence[Item], framing: Preprocess) -> None:
        self.items, self.framing = items, framing

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Batch:
        """Image `index` fitted to the input: image (3, h, w) uint8; label () int64, or boxes (MAX_BOXES, 4) float32 in
        pixels of the input and classes (MAX_BOXES,) int64, or mask (1, h, w) uint8, 0..255 = share that is lane.
        """
        item = self.items[index]
        return item.row() if item.row is not None else fit(item.load(), self.framing)

    def only(self, indices: Iterable[int]) -> Rows:
        """A subset."""
        return Rows([self.items[index] for index in indices], self.framing)


def fit(sample: Sample, framing: Preprocess) -> Batch:
    """A sample fitted to an input, see `Rows`."""
    row: Batch = {"image": framed(sample.image, framing)}
    area = framing.geometry((sample.image.shape[0], sample.image.shape[1]))
    if sample.label is not None:
        row["label"] = torch.tensor(sample.label)
    if sample.boxes is not None and sample.classes is not None:
        row["boxes"], row["classes"] = torch.zeros(MAX_BOXES, 4), torch.full((MAX_BOXES,), NO_BOX)
        count = min(len(sample.boxes), MAX_BOXES)
        scale, offset = np.array([area.scale_x, area.scale_y] * 2), np.array([area.left, area.top] * 2)
        row["boxes"][:count] = torch.from_numpy((sample.boxes * scale + offset)[:count])
        row["classes"][:count] = torch.from_numpy(sample.classes[:count])
    if sample.mask is not None:
        lane = (sample.mask > 0).astype(np.float32)
        share = cv2.resize(lane, (area.width, area.height), interpolation=cv2.INTER_AREA)
        mask = torch.zeros(1, framing.height, framing.width, dtype=torch.uint8)  # the padding is not lane
        inside = mask[0, area.top : area.top + area.height, area.left : area.left + area.width]
        inside[:] = torch.from_numpy(np.rint(share * 255).astype(np.uint8))
        row["mask"] = mask
    return row


def framed(image: npt.NDArray[np.uint8], framing: Preprocess) -> Tensor:
    """(H, W, 3) uint8 -> (3, height, width) uint8, resized exactly as the node does before the network."""
    return torch.from_numpy(np.rint(framing(image)[0] * 255.0).astype(np.uint8))


def truth_of(boxes: npt.NDArray[np.float32], classes: npt.NDArray[np.int64]) -> Truth:
    """The truth from boxes (N, 4) float32 and class numbers (N,) int64. Ignored boxes are left out of it, so that a
    detection there counts as false.
    """
    crowd = classes <= CROWD
    shown = crowd | (classes >= 0)
    return Truth(boxes[shown], np.where(crowd, CROWD - classes, classes)[shown], crowd[shown])
