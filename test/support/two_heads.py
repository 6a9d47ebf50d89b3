"""A network with two raw outputs whose results follow from the image by a simple rule, to test several results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

#: (width, height) of its input, and side of its cells, pixels.
SIZE, CELL = (64, 48), 8
LABELS = ["car", "person"]


class TwoHeads(nn.Module):
    """(N, 3, h, w) -> (N, 4 + 2, cells): a cell's box; red is the score of a car, green that of a person. And
    (N, 2, rows, columns): none and drivable, which is where blue is over one half.
    """

    def __init__(self) -> None:
        super().__init__()
        columns, rows = SIZE[0] // CELL, SIZE[1] // CELL
        x = (torch.arange(columns) + 0.5).repeat(rows) * CELL
        y = (torch.arange(rows) + 0.5).repeat_interleave(columns) * CELL
        side = torch.full_like(x, CELL)
        self.register_buffer("boxes", torch.stack([x, y, side, side])[None])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        cells = nn.functional.avg_pool2d(image, CELL)
        scores = cells[:, :2].flatten(2)
        blue = 20 * cells[:, 2:] - 10
        return torch.cat([self.boxes + 0 * scores[:, :1], scores], 1), torch.cat([-blue, blue], 1)


class Instances(TwoHeads):
    """(N, 3, h, w) -> (N, 4 + 2 + 32, cells) and (N, 32, rows, columns), as YOLOv8-seg: the boxes of TwoHeads, with
    masks that fill them.
    """

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        boxes, free = super().forward(image)
        coefficients = torch.ones_like(boxes[:, :1]).repeat(1, 32, 1)
        prototypes = torch.ones_like(free[:, :1]).repeat(1, 32, 1, 1)
        return torch.cat([boxes, coefficients], 1), prototypes


def exported(folder: Path, network: type[TwoHeads] = TwoHeads) -> Path:
    """The network as a .pt2 file."""
    file = folder / f"{network.__name__}.pt2"
    torch.export.save(torch.export.export(network().eval(), (torch.zeros(1, 3, SIZE[1], SIZE[0]),)), file)
    return file


def picture(cars: list[tuple[int, int]], people: list[tuple[int, int]], road: slice) -> npt.NDArray[np.uint8]:
    """(48, 64, 3) RGB: cells (column, row) with a car or a person, rows of cells that are drivable."""
    cells = np.zeros((SIZE[1] // CELL, SIZE[0] // CELL, 3), np.uint8)
    for channel, places in ((0, cars), (1, people)):
        for column, row in places:
            cells[row, column, channel] = 255
    cells[road, :, 2] = 255
    return cells.repeat(CELL, 0).repeat(CELL, 1)
