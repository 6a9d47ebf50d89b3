"""Data sets by name, as in ``--data KIND:PATH``, and their three parts."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, get_args

import yaml

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.training import cifar10
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.training.image_folders import ClassFolder, LaneMasks, coco_boxes, yolo_boxes
from multi_dnn_ros.training.road import RoadRows
from multi_dnn_ros.training.samples import DatasetError, Rows, SomeRows
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

#: Share of the rows that is held out for selecting the best epoch.
VALIDATION_SHARE = 0.05
#: Number of rows below which the best epoch may be selected by chance.
VALIDATION_ROWS = 50
#: Largest share of the rows that is held out to reach VALIDATION_ROWS. A larger recording is not held out whole.
MAX_SHARE = 0.25
#: Number of rows left out where a recording has to be cut in two: a second of most videos.
GAP = 25
_FRAME = re.compile(r"[_-]\d+$")


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


def evenly_spaced(wanted: int, count: int) -> list[int]:
    """`wanted` of `count` rows at even intervals, or all if there are no more: folders list one class after another."""
    return list(range(count)) if wanted >= count else [k * count // wanted for k in range(wanted)]


def recording_of(stem: str) -> str:
    """The recording of an image file, from its name without suffix: the part before `_<number>` or `-<number>` at its
    end, or the whole name.
    """
    return _FRAME.sub("", stem)


def held_out(rows: Rows, part: Part, recordings: Sequence[str], where: str) -> Rows:
    """The rows of `part`, which is `train` or `choice`, as divided by `split`."""
    train, validation = split(recordings, where)
    if part == "choice":
        return SomeRows(rows, validation)
    # Items without a row, such as images without a mask, are reported once, for the larger part.
    return SomeRows(rows, train, rows.unusable)


def split(recordings: Sequence[str], where: str) -> tuple[list[int], list[int]]:
    """Row numbers for training and for validation, ascending, the same in every run. Rows in neither lie at a cut
    through a recording.

    VALIDATION_SHARE of the rows is held out, or VALIDATION_ROWS if that is more, but at most MAX_SHARE. recordings: the
    recording of each row. Neighbouring frames of a recording are nearly equal, so whole recordings are held out, unless
    every row is a recording of its own. If whole recordings yield less than half of the wanted number of rows, the end
    of the largest one is held out instead. Raises DatasetError, with `where` in its text, for fewer than two rows.
    """
    count = len(recordings)
    if count < 2:
        raise DatasetError(f"{where}: {count} images; at least two are needed, one of them to select the best epoch")
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    rows: dict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(recordings):
        rows[name].append(index)
    unused: list[int] = []
    if len(rows) == count:
        chosen = [int((k + 1) * count / wanted) - 1 for k in range(wanted)]
    else:
        chosen = _whole_recordings(rows, wanted, int(count * MAX_SHARE))
        if 2 * len(chosen) < wanted:
            largest = rows[max(rows, key=lambda name: (len(rows[name]), name))]
            wanted = min(wanted, len(largest) // 2)
            gap = min(GAP, (len(largest) - wanted) // 4)
            end = len(largest) - wanted
            chosen, unused = largest[end:], largest[end - gap : end]
    taken = {*chosen, *unused}
    return [k for k in range(count) if k not in taken], sorted(chosen)


def _whole_recordings(rows: dict[str, list[int]], wanted: int, limit: int) -> list[int]:
    """Rows of whole recordings, added in an order that depends on their names until there are `wanted`, up to `limit`.

    If that yields fewer than half of `wanted`, the rows of the largest recording up to `limit`, if they are more.
    """
    chosen: list[int] = []
    names = sorted(rows, key=lambda name: hashlib.sha256(name.encode()).digest())
    for name in names:
        if len(chosen) < wanted and len(chosen) + len(rows[name]) <= limit:
            chosen += rows[name]
    if 2 * len(chosen) >= wanted:
        return chosen
    return max([chosen, *(rows[name] for name in names if len(rows[name]) <= limit)], key=len)


def _independent(rows: Rows) -> list[str]:
    """Recordings of rows that are independent of each other."""
    return [str(k) for k in range(len(rows))]


def _by_file(rows: Rows) -> list[str]:
    """Recordings of rows that are files, by their names."""
    return [recording_of(Path(rows.name(k)).stem) for k in range(len(rows))]


class Cifar10:
    """Data `cifar10`. path: an archive, or a folder."""

    task: Task = "classes"
    labels: tuple[str, ...] = cifar10.LABELS

    def __init__(self, name: str, path: Path, wanted: DataRequest) -> None:
        self.name, self._path, self._framing = name, path, wanted.framing

    @cached_property
    def _parts(self) -> dict[str, cifar10.Cifar10Rows]:
        return cifar10.load(self._path, self._framing)

    def part(self, part: Part) -> Rows:
        rows = self._parts["test" if part == "test" else "train"]
        return rows if part == "test" else held_out(rows, part, _independent(rows), self.name)


class _Folders:
    """Folders train, val and, if it exists, test. Without it, val is the test part, and the validation part is held out
    of train.
    """

    #: Where the folders of the parts are, below DIR.
    below = ""

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        self.name, self.folder, self.framing, self.labels = name, folder, wanted.framing, wanted.labels
        for part in ("train", "val"):
            if not (folder / self.below / part).is_dir():
                layout = DATA_KINDS[name.partition(":")[0]].layout
                raise DatasetError(f"{folder / self.below / part}: no such folder; expected {layout}")
        self.has_test = (folder / self.below / "test").is_dir()

    def part(self, part: Part) -> Rows:
        if self.has_test:
            return self._rows({"train": "train", "choice": "val", "test": "test"}[part])
        if part == "test":
            return self._rows("val")
        rows = self._rows("train")
        return held_out(rows, part, self._recordings(rows), str(self.folder / self.below / "train"))

    def _rows(self, part: str) -> Rows:
        raise NotImplementedError

    def _recordings(self, rows: Rows) -> Sequence[str]:
        return _by_file(rows)


class Classes(_Folders):
    """Data `classes`."""

    task: Task = "classes"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        super().__init__(name, folder, wanted)
        self._train = ClassFolder(folder / "train", wanted.framing)
        self.labels = self._train.labels

    def _rows(self, part: str) -> Rows:
        return self._train if part == "train" else ClassFolder(self.folder / part, self.framing, self.labels)

    def _recordings(self, rows: Rows) -> Sequence[str]:
        return _independent(rows)


class Lanes(_Folders):
    """Data `lanes`."""

    task: Task = "lanes"

    def _rows(self, part: str) -> Rows:
        return LaneMasks(self.folder / part, self.framing)


class Yolo(_Folders):
    """Data `yolo`."""

    task: Task = "boxes"
    below = "images"

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        super().__init__(name, folder, wanted)
        files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
        if len(files) != 1:
            raise DatasetError(f"{folder}: {len(files)} .yaml files; expected one, with the class names as `names`")
        try:
            names = yaml.safe_load(files[0].read_text(encoding="utf-8"))["names"]
            self._names = [str(each) for each in (names.values() if isinstance(names, dict) else names)]
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise DatasetError(f"{files[0]}: no class names ({error}); expected a list `names`") from None

    def _rows(self, part: str) -> Rows:
        images, truth = (self.folder / each / part for each in ("images", "labels"))
        is_test = part == ("test" if self.has_test else "val")
        return yolo_boxes(images, truth, self._names, self.framing, self.labels, empty=is_test)


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
        rows = coco_boxes(images, annotations[0], self.framing, self.labels, empty=part == "test")
        return rows if part == "test" else held_out(rows, part, _by_file(rows), str(images))


class Road:
    """Data `road`: generated scenes, with boxes or lanes, whichever the network is for; task None: with both."""

    def __init__(self, name: str, folder: Path, wanted: DataRequest) -> None:
        if wanted.task == "classes":
            raise DatasetError(f"data '{name}' holds boxes and lanes; the network is for classes")
        self.name, self.folder, self.wanted = name, folder, wanted
        self.task: Task = wanted.task or "boxes"
        self.labels = wanted.labels or LABELS
        self._truth = ("boxes", "lanes") if wanted.task is None else (wanted.task,)
        if wanted.task == "boxes" and not set(self.labels) & set(LABELS):
            raise DatasetError(
                f"data '{name}' shows {', '.join(LABELS)}; the network's classes are {', '.join(self.labels[:8])}"
            )

    def part(self, part: Part) -> Rows:
        train = part == "train"
        count = self.wanted.scenes if train else max(8, self.wanted.scenes // 12)
        return RoadRows(
            self.folder, count, SEEDS[part], self.wanted.framing, self.labels, self._truth, wide=train
        )  # fmt: skip
