"""Batches of a training: rows in random order, augmented by torchvision's transforms, read by a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import Batch, Rows

#: Maximum number of processes that read for one process that trains.
_READERS = 8


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
    """Augmented batches of all sets on `device`. The same epoch number gives the same batches, whatever the number of
    processes.

    inputs: converts images (B, 3, h, w) float 0..1 RGB to the network's input. batch_size: images per batch over all
    processes, each of which gets its share; at most the number of rows. Raises ValueError if a share would be empty.
    """

    def __init__(
        self, sets: Sequence[Rows], task: Task, inputs: Callable[[Tensor], Tensor], batch_size: int, seed: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._data = _Augmented(sets, task)
        self._inputs, self._seed, self._device = inputs, seed, device
        self.batch_size = min(batch_size, len(self._data.rows))
        if self.batch_size < distributed.world():
            raise ValueError(
                f"batches of {self.batch_size} for {distributed.world()} processes: each needs at least one image"
            )

    def __len__(self) -> int:
        """Batches per epoch; an incomplete last one is dropped."""
        return len(self._data.rows) // self.batch_size

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """This process's share of each batch of an epoch from batch `first` on. The shares differ by at most one image.

        Raises DatasetError for an image that cannot be read.
        """
        epoch_seed = self._seed * 100_003 + number
        order = torch.randperm(len(self._data.rows), generator=torch.Generator().manual_seed(epoch_seed)).tolist()
        rank, world, size = distributed.rank(), distributed.world(), self.batch_size
        share = range(rank * size // world, (rank + 1) * size // world)
        keys = [
            [((epoch_seed * 10_000_019 + k * size + j) % (1 << 63), order[k * size + j]) for j in share]
            for k in range(first, len(self))
        ]
        on_gpu = self._device.type == "cuda"
        readers = min(_READERS, cpu_count() // world) if on_gpu else 0  # a CPU is busy with training
        try:
            for batch in DataLoader(self._data, batch_sampler=keys, num_workers=readers, pin_memory=on_gpu):
                moved = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
                yield {**moved, "image": self._inputs(moved["image"])}
        except DatasetError as error:
            # The DataLoader puts the traceback of its process in front of the message.
            raise DatasetError(str(error).strip().splitlines()[-1].rpartition("DatasetError: ")[2]) from None
