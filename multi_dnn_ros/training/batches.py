"""Batches of a training: rows in random order, augmented by torchvision's transforms, read by a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as v2f

from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import Batch, Rows

#: Maximum number of processes that read for one process that trains.
_READERS = 8


@dataclass(frozen=True)
class Inputs:
    """Converts images 0..1 to a network's input: (value - mean) / std.

    bgr: the network expects BGR; mean and std are in that order.
    """

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    bgr: bool = False

    def __call__(self, image: Tensor) -> Tensor:
        """(B, 3, h, w) float 0..1 RGB -> the same, float."""
        image = image.flip(1) if self.bgr else image
        normalized: Tensor = v2f.normalize(image, list(self.mean), list(self.std))
        return normalized


def augmentation(task: Task, size: tuple[int, int]) -> v2.Transform:
    """The random changes of an image 0..1 and its truth. size: (width, height) of the image.

    Classes: mirrored, shifted by up to an eighth (reflected), a square of a quarter of the side blanked (DeVries and
    Taylor 2017). Boxes: mirrored, colours, noise. Lanes: also scaled by 0.8 to 1.25 and shifted by up to a tenth.
    """
    width, height = size
    mirror = v2.RandomHorizontalFlip()
    if task == "classes":
        reach = [width // 8, height // 8]
        blank = v2.RandomErasing(1.0, (1 / 16, 1 / 16), (1.0, 1.0), 0.5)
        return v2.Compose([mirror, v2.RandomCrop((height, width), reach, padding_mode="reflect"), blank])
    colours = [v2.ColorJitter(0.3, 0.3, 0.3, 0.03), v2.RandomApply([v2.GaussianNoise(sigma=0.02)])]
    if task == "boxes":
        return v2.Compose([mirror, *colours])
    moved = v2.RandomAffine(0, (0.08, 0.1), (0.8, 1.25), interpolation=v2.InterpolationMode.BILINEAR)
    return v2.Compose([mirror, moved, *colours])


class _Augmented(Dataset[Batch]):
    """Rows by (seed, row): the random numbers of a row follow from its seed, whichever process reads it."""

    def __init__(self, sets: Sequence[Rows], task: Task) -> None:
        self.rows: ConcatDataset[Batch] = ConcatDataset(sets)
        framing = sets[0].framing
        self.size = (framing.height, framing.width)
        self.augment = augmentation(task, (framing.width, framing.height))

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        seed, row = key
        read = self.rows[row]
        typed: Batch = {**read, "image": tv_tensors.Image(read["image"].float() / 255.0)}
        if "boxes" in read:
            typed["boxes"] = tv_tensors.BoundingBoxes(read["boxes"], format="XYXY", canvas_size=self.size)
        if "mask" in read:
            typed["mask"] = tv_tensors.Mask(read["mask"])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            changed: Batch = self.augment(typed)
        return {name: value.as_subclass(Tensor) for name, value in changed.items()}


class Batches:
    """Augmented batches of all sets on `device`. The same epoch number gives the same batches.

    batch_size: images per batch over all processes, each of which gets its share; at most the number of rows. mix: for
    classes, the share of the batches in which each image gets a rectangle of another one (CutMix, Yun et al. 2019);
    their labels are then (B, classes) float shares. classes: number of classes, for `mix`.
    """

    def __init__(
        self, sets: Sequence[Rows], task: Task, inputs: Inputs, batch_size: int, seed: int, device: torch.device,
        mix: float = 0.0, classes: int = 0,
    ) -> None:  # fmt: skip
        self._data = _Augmented(sets, task)
        self._inputs, self._seed, self._device, self._mix, self._classes = inputs, seed, device, mix, classes
        self.batch_size = min(batch_size, len(self._data.rows))
        if self.batch_size < distributed.world():
            raise ValueError(
                f"batches of {self.batch_size} for {distributed.world()} processes: each needs at least one image"
            )

    def __len__(self) -> int:
        """Batches per epoch; an incomplete last one is dropped."""
        return len(self._data.rows) // self.batch_size

    def epoch(self, number: int) -> Iterator[Batch]:
        """This process's share of each batch of an epoch. The shares differ by at most one image."""
        rank, world = distributed.rank(), distributed.world()
        return self._read(number, 0, rank * self.batch_size // world, (rank + 1) * self.batch_size // world)

    def tenths(self, number: int, step: int, first: int, last: int) -> Iterator[Batch]:
        """The tenths from `first` up to but not including `last` (both 0..10) of each batch, from batch `step` on."""
        return self._read(number, step, self.batch_size * first // 10, self.batch_size * last // 10)

    def _read(self, number: int, step: int, first: int, last: int) -> Iterator[Batch]:
        epoch_seed = self._seed * 100_003 + number
        order = torch.randperm(len(self._data.rows), generator=torch.Generator().manual_seed(epoch_seed)).tolist()
        keys = [
            [
                ((epoch_seed * 10_000_019 + position) % (1 << 63), order[position])
                for position in range(k * self.batch_size + first, k * self.batch_size + last)
            ]
            for k in range(step, len(self))
        ]
        on_gpu = self._device.type == "cuda"
        readers = min(_READERS, cpu_count() // distributed.world()) if on_gpu else 0  # a CPU is busy with training
        loader = DataLoader(self._data, batch_sampler=keys, num_workers=readers, pin_memory=on_gpu)
        try:
            for k, batch in enumerate(loader, step):
                if self._mix:
                    batch = self._mixed(batch, (epoch_seed * len(self) + k) * 1_009 + first)
                moved = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
                yield {**moved, "image": self._inputs(moved["image"])}
        except DatasetError as error:
            # The DataLoader puts the traceback of its process in front of the message.
            raise DatasetError(
                str(error).strip().splitlines()[-1].partition("DatasetError: ")[2] or str(error)
            ) from None

    def _mixed(self, batch: Batch, seed: int) -> Batch:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % (1 << 63))
            if torch.rand(()) >= self._mix:
                return batch
            image, label = v2.CutMix(num_classes=self._classes)(batch["image"], batch["label"])
        return {**batch, "image": image, "label": label}
