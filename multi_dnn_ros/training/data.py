"""Data sets by name, as in ``--data KIND:PATH``, and their three parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

from multi_dnn_ros.training import formats
from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError, kind_and_path
from multi_dnn_ros.training.road import road_items
from multi_dnn_ros.training.samples import Item, Rows
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.preprocess import Preprocess

Task = Literal["classes", "boxes", "lanes"]
#: train: for training. choice: for validation, which selects the best epoch. test: used for neither, scored once.
Part = Literal["train", "choice", "test"]
PARTS: tuple[Part, ...] = get_args(Part)

#: Share of the rows that is held out for selecting the best epoch, the number of rows below which the best epoch may be
#: selected by chance, and the largest share that is held out to reach that number.
VALIDATION_SHARE, VALIDATION_ROWS, MAX_SHARE = 0.05, 50, 0.25


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


def open_data(name: str, wanted: DataRequest) -> Data:
    """The set named ``KIND:PATH``. Raises DatasetError for an unknown kind and for errors in the data."""
    kind, path = kind_and_path(name)
    tasks, labels = DATA_KINDS[kind].tasks, wanted.labels
    if wanted.task is not None and wanted.task not in tasks:
        raise DatasetError(f"data '{name}' holds {' and '.join(tasks)}; the network is for {wanted.task}")
    read: Callable[[str], list[Item]]
    stored: Mapping[Part, str]
    if kind == "road":
        labels, stored = labels or LABELS, {part: part for part in PARTS}
        if wanted.task == "boxes" and not set(labels) & set(LABELS):
            raise DatasetError(f"data '{name}' shows {', '.join(LABELS)}; the network: {', '.join(labels[:8])}")
        truth = tasks if wanted.task is None else (wanted.task,)
        read = partial(road_items, path, count=wanted.scenes, framing=wanted.framing, labels=labels, truth=truth)
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
    return Data(name, labels, cache(lambda part: Rows(read(part), wanted.framing)), stored)


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
