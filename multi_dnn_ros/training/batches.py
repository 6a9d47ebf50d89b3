"""Batches from arrays on the training device or from files: shuffled, augmented, and resized to the network's input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.random_rows import GroupedRandom, Random, by_group, integers, normal, uniform
from multi_dnn_ros.training.transfers import stack_on, to_device

Batch = dict[str, Tensor]
Augment = Callable[[Batch, Random], Batch]
#: Number of batches that FileBatches reads ahead, and of its reader threads.
_AHEAD, _READERS = 3, 8


@dataclass(frozen=True)
class Inputs:
    """Converts an image 0..1 to a network's input: resized to size (width, height) unless None; then (value - mean) /
    std.

    bgr: the network expects BGR; mean and std are in that order.
    """

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    bgr: bool = False

    def __call__(self, image: Tensor) -> Tensor:
        """(B, 3, h, w) float 0..1 RGB -> (B, 3, height, width) float."""
        if self.size is not None and (image.shape[3], image.shape[2]) != self.size:
            smaller = self.size[0] < image.shape[3]
            image = F.interpolate(
                image, self.size[::-1], mode="bilinear", align_corners=False, antialias=smaller
            )  # fmt: skip
        if self.bgr:
            image = image.flip(1)
        if any(self.mean) or any(value != 1.0 for value in self.std):
            mean, std = (_by_channel(values, image.dtype, image.device) for values in (self.mean, self.std))
            image = (image - mean) / std
        return image


@lru_cache(maxsize=64)  # otherwise the host would wait, in every batch, until a GPU has received the values
def _by_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


def _by_group(augment: Augment, batch: Batch, groups: Sequence[tuple[torch.Generator, int]]) -> Batch:
    """The batch, augmented as if each group (generator, number of rows) were a batch of its own."""
    if batch["image"].is_cuda:
        return augment(batch, GroupedRandom(tuple(groups)))
    # On a CPU one group after another: for 64 images of 224x224 pixels this takes half the time, because the images of
    # a group fit better in its caches.
    split = {name: tensor.split([count for _, count in groups]) for name, tensor in batch.items()}
    parts = [
        augment({name: tensors[k] for name, tensors in split.items()}, rng)
        for k, (rng, count) in enumerate(groups)
        if count
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class _Batches:
    """Base of all sources of rows: the order of the rows, this process's share of each batch, and augmentation."""

    def __init__(
        self, rows: Tensor, batch_size: int, seed: int, augment: Augment | None, inputs: Inputs | None
    ) -> None:
        self.rows = rows
        self.seed = seed
        self.augment = augment
        self.inputs = inputs or Inputs()
        self.batch_size = min(batch_size, len(rows))
        if self.batch_size < distributed.world():
            raise ValueError(
                f"batches of {self.batch_size} for {distributed.world()} processes: each needs at least one image"
            )

    def __len__(self) -> int:
        return len(self.rows) // self.batch_size

    def epoch(self, number: int) -> Iterator[Batch]:
        """This process's share of each batch of an epoch; an incomplete last batch is dropped."""
        shuffle = torch.Generator().manual_seed(self.seed * 100_003 + number)
        order = self.rows[torch.randperm(len(self.rows), generator=shuffle)]
        rank, world = distributed.rank(), distributed.world()
        # A batch that does not divide evenly keeps its size: some processes get one image more, and `train` weights
        # their losses accordingly.
        first, last = rank * self.batch_size // world, (rank + 1) * self.batch_size // world
        chosen = [order[k * self.batch_size + first : k * self.batch_size + last] for k in range(len(self))]
        rng: torch.Generator | None = None
        for batch in self._read(chosen):
            if rng is None:
                device = batch["image"].device
                rng = torch.Generator(device).manual_seed((self.seed * 100_003 + number) * 1_009 + rank)
            batch = self._augmented(batch, rng)
            yield {**batch, "image": self.inputs(batch["image"])}

    def tenths(self, number: int, step: int, first: int, last: int) -> Iterator[Batch]:
        """The tenths from `first` up to but not including `last` (both 0..10) of each batch, from batch `step` on.

        Every tenth is augmented with random numbers of its own, so that a batch is the same however its tenths are
        divided over processes. A tenth has batch_size / 10 images, rounded up or down.
        """
        shuffle = torch.Generator().manual_seed(self.seed * 100_003 + number)
        order = self.rows[torch.randperm(len(self.rows), generator=shuffle)]
        bounds = [self.batch_size * tenth // 10 for tenth in range(11)]
        chosen = [
            order[k * self.batch_size + bounds[first] : k * self.batch_size + bounds[last]]
            for k in range(step, len(self))
        ]
        for k, batch in enumerate(self._read(chosen), step):
            seed = ((self.seed * 100_003 + number) * 1_000_003 + k) * 11
            device = batch["image"].device
            groups = [
                (torch.Generator(device).manual_seed((seed + tenth) % (1 << 63)), bounds[tenth + 1] - bounds[tenth])
                for tenth in range(first, last)
            ]
            batch = _by_group(self._augmented, batch, groups)
            yield {**batch, "image": self.inputs(batch["image"])}

    def _augmented(self, batch: Batch, rng: Random) -> Batch:
        """The batch with images 0..1, augmented."""
        batch = {**batch, "image": batch["image"].float() / 255.0}
        return batch if self.augment is None else self.augment(batch, rng)

    def _read(self, chosen: Sequence[Tensor]) -> Iterator[Batch]:
        raise NotImplementedError


class ArrayBatches(_Batches):
    """Batches of arrays in memory; any epoch can be reproduced from its number.

    arrays: all (N, ...); "image" is (N, 3, h, w) uint8. augment: augments a batch on the device, with images 0..1.
    repeats: (N,) number of times that an epoch shows each row; None: once. inputs: final conversion of the image.
    """

    def __init__(
        self,
        arrays: Mapping[str, Tensor],
        batch_size: int,
        seed: int,
        augment: Augment | None = None,
        repeats: Tensor | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"arrays of lengths {sorted(lengths)}: must be equal and not 0")
        self.arrays = dict(arrays)
        rows = torch.arange(lengths.pop())
        rows = rows if repeats is None else rows.repeat_interleave(repeats)
        super().__init__(rows, batch_size, seed, augment, inputs)

    def _read(self, chosen: Sequence[Tensor]) -> Iterator[Batch]:
        if not chosen:
            return
        indices = to_device(torch.cat(list(chosen)), self.arrays["image"].device)
        for rows in indices.split([len(rows) for rows in chosen]):
            yield {name: array[rows] for name, array in self.arrays.items()}


class FileBatches(_Batches):
    """Batches of rows that threads read on demand, a few batches ahead.

    read: returns the tensors of a row, including "image" (3, h, w) uint8, with equal shapes for every row.
    """

    def __init__(
        self,
        read: Callable[[int], Batch],
        count: int,
        batch_size: int,
        seed: int,
        device: torch.device,
        augment: Augment | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        self.read = read
        self.device = device
        super().__init__(torch.arange(count), batch_size, seed, augment, inputs)

    def _read(self, chosen: Sequence[Tensor]) -> Iterator[Batch]:
        yield from read_ahead(self.read, [rows.tolist() for rows in chosen], self.device)


def read_ahead(read: Callable[[int], Batch], groups: Sequence[Sequence[int]], device: torch.device) -> Iterator[Batch]:
    """Stacked rows of each group, in order, on `device`; threads read the next groups meanwhile.

    The host does not wait for the copy of a group to a GPU, but is at most _AHEAD copies ahead of it.
    """
    with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as readers:
        waiting: deque[list[Future[Batch]]] = deque()
        copied: deque[torch.cuda.Event] = deque()
        try:
            for number in range(len(groups) + _AHEAD):
                if number < len(groups):
                    waiting.append([readers.submit(read, row) for row in groups[number]])
                if number >= _AHEAD or number >= len(groups):
                    if not waiting:
                        break
                    rows = [future.result() for future in waiting.popleft()]
                    batch = {name: stack_on([row[name] for row in rows], device) for name in rows[0]}
                    if device.type == "cuda":
                        copied.append(torch.cuda.current_stream(device).record_event())
                        if len(copied) > _AHEAD:
                            copied.popleft().synchronize()
                    yield batch
        finally:
            readers.shutdown(wait=False, cancel_futures=True)


def augment_colours(image: Tensor, rng: Random, strength: float = 1.0) -> Tensor:
    """Vary brightness, contrast, white balance, gamma and noise per image; (B, 3, h, w) 0..1 in and out."""
    b = len(image)
    gamma = torch.exp(uniform(rng, -0.2, 0.2, b, 1, 1, 1) * strength)
    gain = torch.exp(
        uniform(rng, -0.18, 0.18, b, 1, 1, 1) * strength + uniform(rng, -0.06, 0.06, b, 3, 1, 1) * strength
    )
    mean = image.mean(dim=(1, 2, 3), keepdim=True)
    contrast = torch.exp(uniform(rng, -0.2, 0.2, b, 1, 1, 1) * strength)
    varied = ((image - mean) * contrast + mean).clamp(1e-4, 1.0).pow(gamma) * gain
    noise = normal(rng, *image.shape)
    return (varied + noise * uniform(rng, 0.0, 0.02, b, 1, 1, 1) * strength).clamp(0.0, 1.0)


def augment_detection(batch: Batch, rng: Random) -> Batch:
    """Mirror half of the images with their boxes, then vary the colours."""
    image, boxes = batch["image"], batch["boxes"]
    flip = uniform(rng, 0.0, 1.0, len(image)) < 0.5
    image = torch.where(flip[:, None, None, None], image.flip(3), image)
    left, top, right, bottom = boxes.unbind(-1)  # not by a list of indices, which would be copied to the GPU
    mirrored = torch.stack([image.shape[3] - right, top, image.shape[3] - left, bottom], dim=-1)
    boxes = torch.where(flip[:, None, None] & (batch["classes"] != -1)[..., None], mirrored, boxes)
    return {**batch, "image": augment_colours(image, rng), "boxes": boxes}


def augment_lanes(batch: Batch, rng: Random) -> Batch:
    """Mirror, scale by 0.85 to 1.3, shift by up to a tenth, then vary the colours; the mask is transformed likewise."""
    image, mask = batch["image"], batch["mask"].float() / 255.0
    b = len(image)
    across = torch.where(uniform(rng, 0.0, 1.0, b) < 0.5, -1.0, 1.0) / uniform(rng, 0.85, 1.3, b)
    down = across.abs() / uniform(rng, 0.93, 1.07, b)
    matrix = torch.zeros(b, 2, 3, device=image.device)
    matrix[:, 0, 0], matrix[:, 1, 1] = across, down
    matrix[:, 0, 2], matrix[:, 1, 2] = uniform(rng, -0.12, 0.12, b), uniform(rng, -0.15, 0.15, b)
    grid = F.affine_grid(matrix, list(image.shape), align_corners=False)
    image = F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)
    mask = F.grid_sample(mask, grid, padding_mode="reflection", align_corners=False)
    varied = augment_colours(image, rng, strength=1.3)
    return {**batch, "image": varied, "mask": (mask * 255.0).round().to(torch.uint8)}


def augment_classes(batch: Batch, rng: Random, mix: float = 0.0) -> Batch:
    """Mirror half of the images, shift by up to an eighth (reflected), blank a square with a quarter of the image's
    side length (DeVries and Taylor 2017).

    mix: share of the images that then get a rectangle of another image of the batch (CutMix, Yun et al. 2019). The
    batch then also has "other", the (B,) int64 label of that image, and "share", the (B,) 0..1 share of the original
    image.
    """
    image = batch["image"]
    b, _, height, width = image.shape
    image = torch.where((uniform(rng, 0.0, 1.0, b) < 0.5)[:, None, None, None], image.flip(3), image)
    reach_y, reach_x = height // 8, width // 8
    padded = F.pad(image, (reach_x, reach_x, reach_y, reach_y), mode="reflect").permute(0, 2, 3, 1)
    down, across = integers(rng, 2 * reach_y + 1, b, 1), integers(rng, 2 * reach_x + 1, b, 1)
    ys, xs = (torch.arange(side, device=image.device) for side in (height, width))
    image_index = torch.arange(b, device=image.device)[:, None, None]
    image = padded[image_index, (ys + down)[:, :, None], (xs + across)[:, None, :]].permute(0, 3, 1, 2)
    centre_y, centre_x = (uniform(rng, 0.0, float(side), b, 1) for side in (height, width))
    blank = ((ys - centre_y).abs() < height / 8)[:, :, None] & ((xs - centre_x).abs() < width / 8)[:, None, :]
    batch = {**batch, "image": image.masked_fill(blank[:, None], 0.5).contiguous()}
    return _mixed(batch, rng, mix) if mix else batch


def _mixed(batch: Batch, rng: Random, mix: float) -> Batch:
    image = batch["image"]
    b, _, height, width = image.shape
    chosen = uniform(rng, 0.0, 1.0, b, 1) < mix
    side = uniform(rng, 0.0, 1.0, b, 1).sqrt() * chosen  # so that the area of the rectangle is uniform
    inside = []
    for length in (height, width):
        positions = torch.arange(length, device=image.device) + 0.5
        inside.append((positions - uniform(rng, 0.0, float(length), b, 1)).abs() < side * length / 2)
    mask = inside[0][:, :, None] & inside[1][:, None, :]
    image = torch.where(mask[:, None], by_group(rng, image, _reversed), image)
    share = 1.0 - mask.float().mean(dim=(1, 2))
    return {**batch, "image": image, "other": by_group(rng, batch["label"], _reversed), "share": share}


def _reversed(rows: Tensor) -> Tensor:
    return rows.flip(0)
