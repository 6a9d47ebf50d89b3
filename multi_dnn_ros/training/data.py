"""Data sets by name, as in ``--data KIND:PATH``, and their three parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, get_args

from tqdm import tqdm

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.training import cifar10, distributed
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.training.image_folders import class_names, class_rows, coco_rows, lane_rows, yolo_names, yolo_rows
from multi_dnn_ros.training.road import RoadRows
from multi_dnn_ros.training.samples import DatasetError, Rows, SomeRows
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.preprocess import Preprocess

log = logging.getLogger(__name__)

Task = Literal["classes", "boxes", "lanes"]
#: train: for training. choice: for validation, which selects the best epoch. test: used for neither, scored once.
Part = Literal["train", "choice", "test"]
PARTS: tuple[Part, ...] = get_args(Part)
#: Seeds of the generated scenes of each part.
SEEDS: dict[str, int] = {"train": 1, "choice": 2, "test": 3}

#: Share of the rows that is held out for selecting the best epoch, the number of rows below which the best epoch may be
#: selected by chance, and the largest share that is held out to reach that number.
VALIDATION_SHARE, VALIDATION_ROWS, MAX_SHARE = 0.05, 50, 0.25
#: Number of rows left out where a recording has to be cut in two: a second of most videos.
GAP = 25
#: Largest share of unreadable images in a part.
MAX_FAULTY = 0.01
_READERS, _SHOWN = 8, 3


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
    task: Task
    labels: tuple[str, ...]
    read: Callable[[str], Rows]
    stored: Mapping[Part, str]

    def part(self, part: Part) -> Rows:
        rows = self.read(self.stored[part])
        if part == "test" or self.stored["train"] != self.stored.get("choice"):
            return rows
        if len(rows) < 2:
            raise DatasetError(f"data '{self.name}': {len(rows)} images; at least two are needed, one for validation")
        train, choice = split([rows.recording(index) for index in range(len(rows))])
        return SomeRows(rows, train if part == "train" else choice)


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


def split(recordings: Sequence[str]) -> tuple[list[int], list[int]]:
    """Row numbers for training and for validation, ascending, the same in every run.

    VALIDATION_SHARE of the rows is held out, or VALIDATION_ROWS if that is more, but at most MAX_SHARE. recordings: the
    recording of each row. Neighbouring frames of a recording are nearly equal, so whole recordings are held out, at
    even intervals. If there are too few for that, or too large ones, the end of the rows is held out, and up to GAP
    rows before it are in neither part.
    """
    count = len(recordings)
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    names = list(dict.fromkeys(recordings))
    chosen = {names[k] for k in range(len(names)) if (k + 1) * wanted % count < wanted}
    held_out = [k for k, name in enumerate(recordings) if name in chosen]
    if wanted <= 2 * len(held_out) <= 2 * max(1, count * MAX_SHARE):
        return [k for k, name in enumerate(recordings) if name not in chosen], held_out
    end = count - wanted
    return list(range(end - min(GAP, end // 4))), list(range(end, count))


def check_data(data: Data, parts: Sequence[Part] = PARTS, *, progress: bool = True) -> Data:
    """The set without images that cannot be read, which are logged. Rank 0 reads all images of `parts` once.

    Raises DatasetError if more than MAX_FAULTY of a part cannot be read.
    """
    kept: dict[str, Rows] = {}
    for part in parts:
        rows = data.part(part)
        where = f"data '{data.name}', part {'validation' if part == 'choice' else part} ({len(rows)} images)"
        faults = distributed.from_first(_faults(rows, where, progress) if distributed.rank() == 0 else [])
        found = [fault for fault in faults if fault]
        text = f"{where}: {len(found)} unusable: {'; '.join(found[:_SHOWN])}"
        if len(found) > MAX_FAULTY * len(rows):
            raise DatasetError(f"{text}; allowed: {MAX_FAULTY:.0%}")
        if found:
            log.warning("%s", text)
        if part == "choice" and len(rows) < VALIDATION_ROWS:
            log.warning("%s: with fewer than %d the best epoch may be selected by chance", where, VALIDATION_ROWS)
        kept[part] = SomeRows(rows, [k for k, fault in enumerate(faults) if not fault])
    return replace(data, read=kept.__getitem__, stored={part: part for part in parts})


def _faults(rows: Rows, title: str, progress: bool) -> list[str]:
    """For each row the reason why it cannot be used, or an empty text."""

    def fault(index: int) -> str:
        try:
            rows.read(index)
        except DatasetError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
        found = readers.map(fault, range(len(rows)))
        return list(tqdm(found, f"check {title}", len(rows), unit="image", disable=None if progress else True))


def _in_folders(folder: Path, kind: str) -> dict[Part, str]:
    """The folders train, val and, if it exists, test; without it, val is the test part."""
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DatasetError(f"{folder / part}: no such folder; expected {DATA_KINDS[kind].layout}")
    if (folder / "test").is_dir():
        return {"train": "train", "choice": "val", "test": "test"}
    return {"train": "train", "choice": "train", "test": "val"}


def open_cifar10(name: str, path: Path, wanted: DataRequest) -> Data:
    """Data `cifar10`. path: an archive, or a folder."""
    parts = cache(partial(cifar10.load, path, wanted.framing))
    stored: Mapping[Part, str] = {"train": "train", "choice": "train", "test": "test"}
    return Data(name, "classes", cifar10.LABELS, lambda part: parts()[part], stored)


def open_classes(name: str, folder: Path, wanted: DataRequest) -> Data:
    """Data `classes`."""
    stored = _in_folders(folder, "classes")
    labels = class_names(folder / "train")
    if len(labels) < 2:
        raise DatasetError(f"{folder / 'train'}: {len(labels)} class folders; expected at least two")
    return Data(name, "classes", labels, cache(lambda part: class_rows(folder / part, wanted.framing, labels)), stored)


def open_lanes(name: str, folder: Path, wanted: DataRequest) -> Data:
    """Data `lanes`."""
    stored = _in_folders(folder, "lanes")
    return Data(name, "lanes", wanted.labels, cache(lambda part: lane_rows(folder / part, wanted.framing)), stored)


def open_yolo(name: str, folder: Path, wanted: DataRequest) -> Data:
    """Data `yolo`."""
    stored, names = _in_folders(folder / "images", "yolo"), yolo_names(folder)

    @cache
    def read(part: str) -> Rows:
        return yolo_rows(folder / "images" / part, folder / "labels" / part, names, wanted.framing, wanted.labels)

    return Data(name, "boxes", wanted.labels, read, stored)


def open_coco(name: str, folder: Path, wanted: DataRequest) -> Data:
    """Data `coco`. val is the test part, because COCO does not publish the boxes of its test images."""

    @cache
    def read(part: str) -> Rows:
        annotations = sorted((folder / "annotations").glob(f"instances_{part}*.json"))
        if not annotations:
            layout = DATA_KINDS["coco"].layout
            raise DatasetError(f"{folder / 'annotations'}: no instances_{part}*.json; expected {layout}")
        images = folder / annotations[0].stem.removeprefix("instances_")
        return coco_rows(images, annotations[0], wanted.framing, wanted.labels)

    return Data(name, "boxes", wanted.labels, read, {"train": "train", "choice": "train", "test": "val"})


def open_road(name: str, folder: Path, wanted: DataRequest) -> Data:
    """Data `road`: generated scenes, with boxes or lanes, whichever the network is for; task None: with both."""
    if wanted.task == "classes":
        raise DatasetError(f"data '{name}' holds boxes and lanes; the network is for classes")
    labels = wanted.labels or LABELS
    if wanted.task == "boxes" and not set(labels) & set(LABELS):
        raise DatasetError(f"data '{name}' shows {', '.join(LABELS)}; the network: {', '.join(labels[:8])}")
    truth = ("boxes", "lanes") if wanted.task is None else (wanted.task,)

    @cache
    def read(part: str) -> Rows:
        count = wanted.scenes if part == "train" else max(8, wanted.scenes // 12)
        return RoadRows(folder, count, SEEDS[part], wanted.framing, labels, truth, wide=part == "train")

    return Data(name, wanted.task or "boxes", labels, read, {part: part for part in PARTS})
