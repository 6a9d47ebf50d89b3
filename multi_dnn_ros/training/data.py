"""Data sets by name, as in ``--data KIND:PATH``, their three parts, and the augmented batches of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.training import distributed, formats
from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError, kind_and_path
from multi_dnn_ros.training.road import road_items
from multi_dnn_ros.training.samples import Batch, Item, Rows
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.preprocess import Preprocess

Task = Literal["classes", "boxes", "lanes"]
#: train: for training. choice: for validation, which selects the best epoch. test: used for neither, scored once.
Part = Literal["train", "choice", "test"]
PARTS: tuple[Part, ...] = get_args(Part)

#: Share of the rows that is held out for selecting the best epoch, the number of rows below which the best epoch may be
#: selected by chance, and the largest share that is held out to reach that number.
VALIDATION_SHARE, VALIDATION_ROWS, MAX_SHARE = 0.05, 50, 0.25
#: Maximum number of processes that read for one process that trains.
_READERS = 8


@dataclass(frozen=True)
class Data:
    """A data set. name: as given by the user. labels: class names by number, as used in its rows.

    stored: the folder (or batch, or seed) of each part; if train and choice have the same, `choice` is held out of it.
    read: the rows of one of these. Raises DatasetError that names what is missing or malformed.
    """

    name: str
    labels: tuple[str, ...]
    read: Callable[[str], Rows]
    stored: Mapping[Part, str]

    def part(self, part: Part) -> Rows:
        rows = self.read(self.stored[part])
        if part == "test" or self.stored["train"] != self.stored["choice"]:
            return rows
        if len(rows) < 2:
            raise DatasetError(f"data '{self.name}': {len(rows)} images; at least two are needed, one for validation")
        train, choice = split([item.recording for item in rows.items])
        return rows.only(train if part == "train" else choice)


def open_data(
    name: str, task: Task | None, framing: Preprocess, labels: tuple[str, ...] = (), scenes: int = 6000
) -> Data:
    """The set named ``KIND:PATH``, for a network.

    task: the network's; None: any. framing: how an image is fitted to its input, without mean and std. labels: its
    class names by number; empty: those of the data. scenes: number of generated scenes for training; each other part
    has a twelfth of it, at least 8. Raises DatasetError for an unknown kind and for errors in the data.
    """
    kind, path = kind_and_path(name)
    tasks = DATA_KINDS[kind].tasks
    if task is not None and task not in tasks:
        raise DatasetError(f"data '{name}' holds {' and '.join(tasks)}; the network is for {task}")
    read: Callable[[str], list[Item]]
    stored: Mapping[Part, str]
    if kind == "road":
        labels, stored = labels or LABELS, {part: part for part in PARTS}
        if task == "boxes" and not set(labels) & set(LABELS):
            raise DatasetError(f"data '{name}' shows {', '.join(LABELS)}; the network: {', '.join(labels[:8])}")
        truth = tasks if task is None else (task,)
        read = partial(road_items, path, count=scenes, framing=framing, labels=labels, truth=truth)
    elif kind == "cifar10":
        stored = {"train": "train", "choice": "train", "test": "test"}
        labels, read = formats.CIFAR10_LABELS, partial(formats.cifar10_items, path)
    elif kind == "coco":
        # val is the test part, because COCO does not publish the boxes of its test images.
        stored, read = {"train": "train", "choice": "train", "test": "val"}, partial(formats.coco_items, path, labels)
    elif kind == "yolo":
        names = formats.yolo_names(path)
        stored, read = _in_folders(path / "images", kind), partial(formats.yolo_items, path, names, labels)
    elif kind == "classes":
        stored, labels = _in_folders(path, kind), formats.class_names(path / "train")
        read = partial(formats.class_items, path, labels)
        if len(labels) < 2:
            raise DatasetError(f"{path / 'train'}: {len(labels)} class folders; expected at least two")
    else:
        stored, read = _in_folders(path, kind), partial(formats.lane_items, path)
    return Data(name, labels, cache(lambda part: Rows(read(part), framing)), stored)


def _in_folders(folder: Path, kind: str) -> dict[Part, str]:
    """The folders train, val and test; with only one of the latter, validation is held out of train."""
    found = [part for part in ("train", "val", "test") if (folder / part).is_dir()]
    if len(found) < 2 or found[0] != "train":
        missing = folder / ("val" if found[:1] == ["train"] else "train")
        raise DatasetError(f"{missing}: no such folder; expected {DATA_KINDS[kind].layout}")
    return {"train": "train", "choice": "val" if len(found) == 3 else "train", "test": found[-1]}


def evenly_spaced(wanted: int, count: int) -> list[int]:
    """`wanted` of `count` rows at even intervals, or all if there are no more: folders list one class after another."""
    return list(range(count)) if wanted >= count else [k * count // wanted for k in range(wanted)]


def split(recordings: Sequence[str]) -> tuple[list[int], list[int]]:
    """Row numbers for training and for validation, ascending, the same in every run.

    VALIDATION_SHARE of the rows is held out, or VALIDATION_ROWS if that is more, but at most MAX_SHARE. recordings: the
    recording of each row. Neighbouring frames of a recording are nearly equal, so whole recordings are held out, at
    even intervals. If there are too few for that, or too large ones, the end of the rows is held out.
    """
    count = len(recordings)
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    names = list(dict.fromkeys(recordings))
    chosen = {names[k] for k in range(len(names)) if (k + 1) * wanted % count < wanted}
    held_out = [k for k, name in enumerate(recordings) if name in chosen]
    if not wanted <= 2 * len(held_out) <= 2 * max(1, count * MAX_SHARE):
        held_out = list(range(count - wanted, count))
    return sorted(set(range(count)) - set(held_out)), held_out


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
