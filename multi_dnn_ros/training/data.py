"""Data sets by name, as in ``--data KIND:PATH``, and their three parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.training import cifar10
from multi_dnn_ros.training.batches import Batch
from multi_dnn_ros.training.datasets import (
    IGNORED,
    NO_BOX,
    DatasetError,
    RenderSpec,
    RoadFrame,
    SceneArrays,
    fit,
    fit_mask,
    render,
    road_frames,
)
from multi_dnn_ros.training.image_files import ClassFolder, CocoBoxes, LaneMasks
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.preprocess import Preprocess

Task = Literal["classes", "boxes", "lanes"]
#: train: for training. choice: for selecting the best epoch. test: used by neither, scored once.
Part = Literal["train", "choice", "test"]
#: Seeds of the generated scenes of each part.
SEEDS: dict[Part, int] = {"train": 1, "choice": 2, "test": 3}
#: Share of a training part held out for selecting the best epoch, if the set has no such part.
HELD_OUT = 0.05
KINDS = {
    "cifar10": "CIFAR-10: its archive, or a folder or archive of <part>/<class>/*.jpg (classes)",
    "classes": "DIR/train/<class>/*.jpg and DIR/val/..., test/ where there is one (classes)",
    "coco": "DIR/annotations/instances_train*.json and _val*.json, images in DIR/train*/ and val*/ (boxes)",
    "lanes": "DIR/train/images/NAME.jpg, DIR/train/masks/NAME.png and DIR/val/... (lanes)",
    "road": "generated road, rendered into DIR once (boxes or lanes); --scenes says how much",
    "drive": "DIR/*.mp4 with DIR/lane_masks/: learns from the first half, is scored on the second (lanes)",
}


class Rows(Protocol):
    """One part of a set."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Batch:
        """Row `index`: image (3, h, w) uint8, and label () int64, or boxes and classes, or mask (1, h, w) uint8."""
        ...


class ArrayRows:
    """Rows in memory: arrays (N, ...) by name."""

    def __init__(self, arrays: Mapping[str, Tensor]) -> None:
        self.arrays = dict(arrays)

    def __len__(self) -> int:
        return len(self.arrays["image"])

    def read(self, index: int) -> Batch:
        return {name: array[index] for name, array in self.arrays.items()}


class SomeRows:
    """A subset of other rows."""

    def __init__(self, rows: Rows, indices: Sequence[int]) -> None:
        self.rows, self.indices = rows, indices

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
    """Requirements of a network on data.

    task: None: that of the data. framing: how an image becomes its input, without mean and std. labels: the network's
    class names by number; empty: those of the data. scenes: number of generated scenes for training; each other part
    has a twelfth, at least 8.
    """

    task: Task | None
    framing: Preprocess
    labels: tuple[str, ...] = ()
    scenes: int = 6000


def open_data(name: str, wanted: DataRequest) -> Data:
    """The set named ``KIND:PATH``. Raises DatasetError for an unknown kind and for errors in the data."""
    kind, _, path = name.partition(":")
    if kind not in KINDS:
        raise DatasetError(f"data '{name}': kind '{kind}'; allowed: {', '.join(KINDS)}, each followed by :PATH")
    if not path and kind != "road":
        raise DatasetError(f"data '{name}': a path is missing; expected {kind}:PATH, {KINDS[kind]}")
    folder = Path(path) if path else cache_folder() / "road"
    makers: dict[str, Callable[[str, Path, DataRequest], Data]] = {
        "cifar10": _Cifar10, "classes": _Classes, "coco": _Coco, "lanes": _Lanes, "road": _Road, "drive": _Drive
    }  # fmt: skip
    data = makers[kind](name, folder, wanted)
    if wanted.task is not None and data.task != wanted.task:
        raise DatasetError(f"data '{name}' holds {data.task}; the network is for {wanted.task}")
    return data


def held_out(rows: Rows, part: Part) -> Rows:
    """`train`: without the held-out rows; `choice`: only these. They are evenly spaced, the same in every run."""
    step = max(2, round(1 / HELD_OUT))
    chosen = [k for k in range(len(rows)) if (k % step == step - 1) == (part == "choice")]
    if isinstance(rows, ArrayRows):
        return ArrayRows({name: array[chosen] for name, array in rows.arrays.items()})
    return SomeRows(rows, chosen)


class _Cifar10:
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
        return rows if part == "test" else held_out(_shuffled(rows), part)


def _shuffled(rows: ArrayRows) -> ArrayRows:
    """Archives may be sorted by class; the held-out rows must not follow that order."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return ArrayRows({name: array[order] for name, array in rows.arrays.items()})


class _Folders:
    """DIR/train, DIR/val and, if it exists, DIR/test; otherwise val serves as both."""

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing = name, folder, wanted.framing
        for part in ("train", "val"):
            if not (folder / part).is_dir():
                raise DatasetError(f"{folder / part}: no such folder; expected {KINDS[name.partition(':')[0]]}")

    def _of(self, part: Part) -> Path:
        test = self.folder / "test"
        return self.folder / "train" if part == "train" else test if part == "test" and test.is_dir() else (
            self.folder / "val"
        )  # fmt: skip


class _Classes(_Folders):
    task: Task = "classes"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        super().__init__(name, folder, wanted)
        self._train = ClassFolder(folder / "train", wanted.framing)
        self.labels = self._train.labels

    def part(self, part: Part) -> Rows:
        return self._train if part == "train" else ClassFolder(self._of(part), self.framing, self.labels)


class _Lanes(_Folders):
    task: Task = "lanes"
    labels: tuple[str, ...] = LaneMasks.labels

    def part(self, part: Part) -> Rows:
        return LaneMasks(self._of(part), self.framing)


class _Coco:
    task: Task = "boxes"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing, self.labels = name, folder, wanted.framing, wanted.labels

    def part(self, part: Part) -> Rows:
        """val serves as choice and test: COCO does not publish the boxes of its test part."""
        stem = "train" if part == "train" else "val"
        annotations = sorted((self.folder / "annotations").glob(f"instances_{stem}*.json"))
        if not annotations:
            raise DatasetError(
                f"{self.folder / 'annotations'}: no instances_{stem}*.json; expected {KINDS['coco']}"
            )  # fmt: skip
        images = self.folder / annotations[0].stem.removeprefix("instances_")
        return CocoBoxes(images, annotations[0], self.framing, self.labels, empty=part == "test")


class _Road:
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
        size = (self.wanted.framing.width, self.wanted.framing.height)
        count = self.wanted.scenes if part == "train" else max(8, self.wanted.scenes // 12)
        spec = RenderSpec(count, SEEDS[part], size, size, wide=0.3 if part == "train" else 0.0)
        return road_rows(render(spec, self.folder / f"{part}_{size[0]}x{size[1]}"), self.task, self.labels)


def road_rows(scenes: SceneArrays, task: Task, labels: Sequence[str]) -> ArrayRows:
    """Rendered scenes as rows of boxes (without classes that `labels` lacks) or of lanes."""
    if task == "lanes":
        return ArrayRows({"image": _tensor(scenes.lane_images), "mask": _tensor(scenes.lane_masks)})
    own = [labels.index(label) if label in labels else NO_BOX for label in LABELS]
    classes = own_classes(_tensor(scenes.classes), own)
    return ArrayRows({"image": _tensor(scenes.detector_images), "boxes": _tensor(scenes.boxes), "classes": classes})


def own_classes(classes: Tensor, own: Sequence[int]) -> Tensor:
    """Map class numbers (N, M) of the scenes to a network's: own[k] replaces k; ignored boxes are kept."""
    table = torch.tensor([*own, IGNORED, NO_BOX])  # -2 and -1 index from the end
    assert (IGNORED, NO_BOX) == (-2, -1)
    return table[classes]


class _Drive:
    task: Task = "lanes"
    labels: tuple[str, ...] = LaneMasks.labels

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder = name, folder
        self.size = (wanted.framing.width, wanted.framing.height)

    def part(self, part: Part) -> Rows:
        rows = drive_rows(road_frames(self.folder, "video" if part == "test" else "train"), self.size)
        return rows if part == "test" else held_out(rows, part)


def drive_rows(frames: Sequence[RoadFrame], size: tuple[int, int]) -> ArrayRows:
    """Real frames and their masks at a network's input size (width, height)."""
    images = np.stack([fit(frame.image, *size) for frame in frames])
    masks = np.stack([fit_mask(frame.mask, *size) for frame in frames])
    return ArrayRows({"image": torch.from_numpy(images), "mask": torch.from_numpy(masks)})


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))
