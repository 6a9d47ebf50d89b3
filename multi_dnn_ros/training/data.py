"""Data sets by name, as in ``--data KIND:PATH``, and their three parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.training import cifar10
from multi_dnn_ros.training.batches import Batch
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.training.datasets import (
    IGNORED,
    NO_BOX,
    DatasetError,
    RenderSpec,
    RoadFrame,
    SceneArrays,
    framed,
    framed_mask,
    framing_options,
    render,
    road_frames,
)
from multi_dnn_ros.training.image_files import ClassFolder, CocoBoxes, LaneMasks
from multi_dnn_ros.training.parts import recording_of, split
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.preprocess import Preprocess

Task = Literal["classes", "boxes", "lanes"]
#: train: for training. choice: for validation, which selects the best epoch. test: used for neither, scored once.
Part = Literal["train", "choice", "test"]
#: Names of the parts in messages.
PART_TITLES: dict[Part, str] = {"train": "train", "choice": "validation", "test": "test"}
PARTS: tuple[Part, ...] = get_args(Part)
#: Seeds of the generated scenes of each part.
SEEDS: dict[Part, int] = {"train": 1, "choice": 2, "test": 3}


class Rows(Protocol):
    """One part of a set."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Batch:
        """Row `index`: image (3, h, w) uint8, and label () int64, or boxes and classes, or mask (1, h, w) uint8. Raises
        DatasetError, which names the file, if the row cannot be used.
        """
        ...

    def name(self, index: int) -> str:
        """The name of row `index` in messages."""
        ...

    @property
    def unusable(self) -> Sequence[str]:
        """Items of the data that are not in the rows, each with the reason, such as an image without a mask."""
        ...


class ArrayRows:
    """Rows in memory: arrays (N, ...) by name. names: names of the rows; if empty, their numbers are used."""

    unusable: Sequence[str] = ()

    def __init__(self, arrays: Mapping[str, Tensor], names: Sequence[str] = ()) -> None:
        self.arrays = dict(arrays)
        self.names = tuple(names)

    def name(self, index: int) -> str:
        return self.names[index] if self.names else f"image {index}"

    def subset(self, indices: Sequence[int]) -> ArrayRows:
        """Rows `indices`, copied."""
        names = [self.names[index] for index in indices] if self.names else ()
        return ArrayRows({name: array[list(indices)] for name, array in self.arrays.items()}, names)

    def __len__(self) -> int:
        return len(self.arrays["image"])

    def read(self, index: int) -> Batch:
        return {name: array[index] for name, array in self.arrays.items()}


class SomeRows:
    """A subset of other rows."""

    def __init__(self, rows: Rows, indices: Sequence[int], unusable: Sequence[str] = ()) -> None:
        self.rows, self.indices, self.unusable = rows, indices, unusable

    def name(self, index: int) -> str:
        return self.rows.name(self.indices[index])

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Batch:
        return self.rows.read(self.indices[index])


def in_memory(rows: Rows) -> ArrayRows:
    """All rows, read once into memory."""
    read = [rows.read(index) for index in range(len(rows))]
    return ArrayRows({name: torch.stack([row[name] for row in read]) for name in read[0]})


class Data(Protocol):
    """A data set. name: as given by the user. labels: class names by number, as used in its rows."""

    name: str
    task: Task
    labels: tuple[str, ...]

    def part(self, part: Part) -> Rows:
        """One part. Raises DatasetError that names what is missing or malformed."""
        ...


@dataclass(frozen=True)
class DataRequest:
    """What a network requires of a data set.

    task: the network's task; None: any. framing: how an image is fitted to the network's input, without mean and std.
    labels: the network's class names by number; empty: those of the data. scenes: number of generated scenes for
    training; each other part has a twelfth of it, at least 8.
    """

    task: Task | None
    framing: Preprocess
    labels: tuple[str, ...] = ()
    scenes: int = 6000


def open_data(name: str, wanted: DataRequest) -> Data:
    """The set named ``KIND:PATH``. Raises DatasetError for an unknown kind and for errors in the data."""
    kind, _, path = name.partition(":")
    if kind not in DATA_KINDS:
        raise DatasetError(f"data '{name}': kind '{kind}'; allowed: {', '.join(DATA_KINDS)}, each followed by :PATH")
    spec = DATA_KINDS[kind]
    if not path and spec.needs_path:
        raise DatasetError(f"data '{name}': a path is missing; expected {kind}:{spec.path}, {spec.layout}")
    make: Callable[[str, Path, DataRequest], Data] = extensions.load(spec.data)
    data = make(name, Path(path) if path else cache_folder() / kind, wanted)
    if wanted.task is not None and data.task != wanted.task:
        raise DatasetError(f"data '{name}' holds {data.task}; the network is for {wanted.task}")
    return data


def subset(rows: Rows, indices: Sequence[int]) -> Rows:
    """Rows `indices`, in memory if `rows` are."""
    return rows.subset(indices) if isinstance(rows, ArrayRows) else SomeRows(rows, indices)


def held_out(rows: Rows, part: Part, recordings: Sequence[str], where: str) -> Rows:
    """The rows of `part`, which is `train` or `choice`, as divided by `split`."""
    parts = split(recordings, where)
    if part == "choice":
        return subset(rows, parts.validation)
    # Items without a row, such as images without a mask, are reported once, for the larger part.
    return SomeRows(rows, parts.train, rows.unusable) if rows.unusable else subset(rows, parts.train)


def _one_recording_per_row(rows: Rows) -> list[str]:
    """Recordings of rows that are independent of each other."""
    return [str(k) for k in range(len(rows))]


class Cifar10:
    """Data `cifar10`. path: an archive, or a folder."""

    task: Task = "classes"
    labels: tuple[str, ...] = cifar10.LABELS

    def __init__(self, name: str, path: Path, wanted: DataRequest) -> None:
        self.name, self._path = name, path

    @cached_property
    def _arrays(self) -> dict[str, cifar10.Arrays]:
        return cifar10.load(self._path)

    def part(self, part: Part) -> Rows:
        images, labels = self._arrays["test" if part == "test" else "train"]
        rows = ArrayRows({"image": images, "label": labels})
        return rows if part == "test" else held_out(_shuffled(rows), part, _one_recording_per_row(rows), self.name)


def _shuffled(rows: ArrayRows) -> ArrayRows:
    """Archives may be sorted by class; the held-out rows must not follow that order."""
    return rows.subset(torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist())


class _Folders:
    """DIR/train, DIR/val and, if it exists, DIR/test. If DIR/test does not exist, val is the test part, and the
    validation part is held out of train.
    """

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing = name, folder, wanted.framing
        for part in ("train", "val"):
            if not (folder / part).is_dir():
                raise DatasetError(
                    f"{folder / part}: no such folder; expected {DATA_KINDS[name.partition(':')[0]].layout}"
                )
        self.has_test = (folder / "test").is_dir()

    def part(self, part: Part) -> Rows:
        if self.has_test:
            return self._rows(self.folder / {"train": "train", "choice": "val", "test": "test"}[part])
        if part == "test":
            return self._rows(self.folder / "val")
        rows = self._rows(self.folder / "train")
        return held_out(rows, part, self._recordings(rows), str(self.folder / "train"))

    def _rows(self, folder: Path) -> Rows:
        raise NotImplementedError

    def _recordings(self, rows: Rows) -> Sequence[str]:
        return _one_recording_per_row(rows)


class Classes(_Folders):
    """Data `classes`."""

    task: Task = "classes"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        super().__init__(name, folder, wanted)
        self._train = ClassFolder(folder / "train", wanted.framing)
        self.labels = self._train.labels

    def _rows(self, folder: Path) -> Rows:
        return self._train if folder.name == "train" else ClassFolder(folder, self.framing, self.labels)


class Lanes(_Folders):
    """Data `lanes`."""

    task: Task = "lanes"
    labels: tuple[str, ...] = LaneMasks.labels

    def _rows(self, folder: Path) -> Rows:
        return LaneMasks(folder, self.framing)

    def _recordings(self, rows: Rows) -> Sequence[str]:
        return [recording_of(Path(rows.name(k)).stem) for k in range(len(rows))]


class Coco:
    """Data `coco`."""

    task: Task = "boxes"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing, self.labels = name, folder, wanted.framing, wanted.labels

    def part(self, part: Part) -> Rows:
        """val is the test part, because COCO does not publish the boxes of its test images; the validation part is held
        out of train.
        """
        stem = "val" if part == "test" else "train"
        annotations = sorted((self.folder / "annotations").glob(f"instances_{stem}*.json"))
        if not annotations:
            expected = DATA_KINDS["coco"].layout
            raise DatasetError(f"{self.folder / 'annotations'}: no instances_{stem}*.json; expected {expected}")
        images = self.folder / annotations[0].stem.removeprefix("instances_")
        rows = CocoBoxes(images, annotations[0], self.framing, self.labels, empty=part == "test")
        if part == "test":
            return rows
        return held_out(rows, part, [recording_of(Path(rows.name(k)).stem) for k in range(len(rows))], str(images))


class Road:
    """Data `road`: generated scenes, with boxes or lanes, whichever the network is for."""

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        if wanted.task not in ("boxes", "lanes"):
            raise DatasetError(f"data '{name}' holds boxes and lanes; the network is for {wanted.task or 'classes'}")
        self.name, self.folder, self.wanted = name, folder, wanted
        self.task: Task = wanted.task
        self.labels = wanted.labels
        if self.task == "boxes" and not set(self.labels) & set(LABELS):
            raise DatasetError(
                f"data '{name}' shows {', '.join(LABELS)}; the network's classes are {', '.join(self.labels[:8])}"
            )

    def part(self, part: Part) -> Rows:
        framing = self.wanted.framing
        size, options = (framing.width, framing.height), framing_options(framing)
        count = self.wanted.scenes if part == "train" else max(8, self.wanted.scenes // 12)
        spec = RenderSpec(count, SEEDS[part], size, size, wide=0.3 if part == "train" else 0.0, **options)
        name = "_".join([f"{part}_{size[0]}x{size[1]}", *(f"{key}_{value}" for key, value in options.items())])
        return road_rows(render(spec, self.folder / name), self.task, self.labels)


def road_rows(scenes: SceneArrays, task: Task, labels: Sequence[str]) -> ArrayRows:
    """Rendered scenes as rows of boxes (without classes that `labels` lacks) or of lanes."""
    if task == "lanes":
        return ArrayRows({"image": _tensor(scenes.lane_images), "mask": _tensor(scenes.lane_masks)})
    numbers = [labels.index(label) if label in labels else NO_BOX for label in LABELS]
    classes = map_classes(_tensor(scenes.classes), numbers)
    return ArrayRows({"image": _tensor(scenes.detector_images), "boxes": _tensor(scenes.boxes), "classes": classes})


def map_classes(classes: Tensor, numbers: Sequence[int]) -> Tensor:
    """Map class numbers (N, M) of the scenes to a network's: numbers[k] replaces k; IGNORED and NO_BOX stay."""
    table = torch.tensor([*numbers, IGNORED, NO_BOX])  # -2 and -1 index from the end
    assert (IGNORED, NO_BOX) == (-2, -1)
    return table[classes]


class Drive:
    """Data `drive`: the frames of videos that have a lane mask."""

    task: Task = "lanes"
    labels: tuple[str, ...] = LaneMasks.labels

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing = name, folder, wanted.framing

    def part(self, part: Part) -> Rows:
        frames = road_frames(self.folder, "video" if part == "test" else "train")
        rows = drive_rows(frames, self.framing)
        recordings = [recording_of(frame.name) for frame in frames]
        return rows if part == "test" else held_out(rows, part, recordings, str(self.folder))


def drive_rows(frames: Sequence[RoadFrame], framing: Preprocess) -> ArrayRows:
    """Real frames and their masks, fitted to a network's input. framing: as in DataRequest."""
    images = np.stack([framed(frame.image, framing) for frame in frames])
    masks = np.stack([framed_mask(frame.mask, framing, frame.image.shape[:2]) for frame in frames])
    return ArrayRows(
        {"image": torch.from_numpy(images), "mask": torch.from_numpy(masks)}, [frame.name for frame in frames]
    )


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))
