"""Formats of data: CIFAR-10, folders of classes, boxes in COCO's and in YOLO's format, lane masks.

Each function lists the images of one part, which are read one at a time; layouts are those of DATA_KINDS. All raise
DatasetError, which names the file or folder and what is expected there.
"""

from __future__ import annotations

import json
import logging
import re
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import yaml

from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError
from multi_dnn_ros.training.samples import CROWD, MAX_BOXES, Item, Sample
from multi_dnn_ros.vision.image_files import image_files

log = logging.getLogger(__name__)

CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: Largest relative difference between the aspect ratios of an image and its mask, which may be smaller and rounded.
_MAX_ASPECT_DIFFERENCE = 0.05

_Box = tuple[list[float], int]  # x1, y1, x2, y2 and the class number


def cifar10_items(path: Path, part: str) -> list[Item]:
    """CIFAR-10's binary version (Krizhevsky 2009): its archive, or a folder with its files. part: "train" or "test"."""
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] if part == "train" else ["test_batch.bin"]
    try:
        if path.is_dir():
            files = {file.name: file.read_bytes() for file in path.rglob("*_batch*.bin")}
        else:
            with tarfile.open(path) as archive:
                streams = {Path(each.name).name: archive.extractfile(each) for each in archive}
                files = {name: stream.read() for name, stream in streams.items() if stream and name in names}
        records = np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        labels = records[:, 0].tolist()
        if max(labels) >= len(CIFAR10_LABELS):
            raise ValueError(f"label {max(labels)}")
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError) as error:
        expected = DATA_KINDS["cifar10"].layout
        raise DatasetError(f"{path}: cannot be read ({type(error).__name__}: {error}); expected {expected}") from None
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return [
        Item(f"image {k}", str(k), partial(Sample, image, label))
        for k, (image, label) in enumerate(zip(images, labels, strict=True))
    ]


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders of a part, sorted by name."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))


def class_items(folder: Path, labels: Sequence[str], part: str) -> list[Item]:
    """Images by class and name, as in torchvision's ImageFolder. labels: the classes."""
    found = class_names(folder / part)
    if unknown := set(found) - set(labels):
        raise DatasetError(f"{folder / part}: folder {min(unknown)} is not a class of the training part")
    files = [(path, labels.index(name)) for name in found for path in image_files(folder / part / name)]
    if not files:
        raise DatasetError(f"{folder / part}: no images; expected {DATA_KINDS['classes'].layout}")
    return [Item(str(path), str(path), partial(_with_label, path, number)) for path, number in files]


def coco_items(folder: Path, labels: Sequence[str], part: str) -> list[Item]:
    """COCO's detection format: a folder of images and one JSON of images, annotations and categories.

    A crowd (`iscrowd`) of class k has the class number CROWD - k. Categories are matched to the network's labels by
    name. Empty boxes and boxes outside their image are left out.
    """
    found = sorted((folder / "annotations").glob(f"instances_{part}*.json"))
    if not found:
        expected = DATA_KINDS["coco"].layout
        raise DatasetError(f"{folder / 'annotations'}: no instances_{part}*.json; expected {expected}")
    annotations, images = found[0], folder / found[0].stem.removeprefix("instances_")
    try:
        content = json.loads(annotations.read_text(encoding="utf-8"))
        names = {int(row["id"]): str(row["name"]) for row in content["categories"]}
        files = {
            int(row["id"]): (images / str(row["file_name"]), (int(row["width"]), int(row["height"])))
            for row in content["images"]
        }
        boxes: dict[int, list[_Box]] = {key: [] for key in files}
        for row in content["annotations"]:
            name, (_, size) = names[int(row["category_id"])], files[int(row["image_id"])]
            left, top, width, height = (float(value) for value in row["bbox"])
            box = [left, top, left + width, top + height]
            if name in labels and _is_box(box, *size):
                number = labels.index(name)
                boxes[int(row["image_id"])].append((box, CROWD - number if row.get("iscrowd") else number))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError) as error:
        raise DatasetError(
            f"{annotations}: not COCO's detection format ({type(error).__name__}: {error}); expected images "
            "(id, file_name, width, height), categories (id, name), annotations (image_id, category_id, bbox)"
        ) from None
    _check_names(annotations, names.values(), labels)
    missing = [path for path, _ in files.values() if not path.is_file()]
    if missing or not files:
        raise DatasetError(f"{[*missing, images][0]}: no such image ({len(missing)} of {len(files)} are missing)")
    return _box_items([(path, boxes[key], size) for key, (path, size) in sorted(files.items())])


def yolo_names(folder: Path) -> list[str]:
    """The class names by number in the only .yaml file of a folder."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(files) != 1:
        raise DatasetError(f"{folder}: {len(files)} .yaml files; expected one, with the class names as `names`")
    try:
        names = yaml.safe_load(files[0].read_text(encoding="utf-8"))["names"]
        return [str(each) for each in (names.values() if isinstance(names, dict) else names)]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{files[0]}: no class names ({error}); expected a list `names`") from None


def yolo_items(folder: Path, names: Sequence[str], labels: Sequence[str], part: str) -> list[Item]:
    """YOLO's format: NAME.jpg in one folder, NAME.txt in another, a line `class x y width height` per box, with the
    centre and the size as shares of the image's size.

    names: the classes by number. A missing file means an image without objects. Boxes are left out as by `coco_items`.
    """
    images, truth = folder / "images" / part, folder / "labels" / part
    _check_names(truth, names, labels)
    by_number = dict(enumerate(names))
    files: list[tuple[Path, list[_Box], tuple[int, int]]] = []
    for path in image_files(images):
        file, boxes = truth / f"{path.stem}.txt", []
        for line, text in enumerate(file.read_text(errors="replace").splitlines() if file.is_file() else (), 1):
            try:
                number, x, y, width, height = (float(word) for word in text.split())
                name = by_number[int(number)]
            except (ValueError, KeyError, OverflowError):
                expected = f"expected `class x y width height`, class 0 to {len(names) - 1}"
                raise DatasetError(f"{file}, line {line}: '{text[:60]}'; {expected}") from None
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            if name in labels and _is_box(box, 1, 1):
                boxes.append((box, labels.index(name)))
        files.append((path, boxes, (1, 1)))
    if not files:
        raise DatasetError(f"{images}: no images; expected {DATA_KINDS['yolo'].layout}")
    return _box_items(files)


def lane_items(folder: Path, part: str) -> list[Item]:
    """Images with masks of their names, nonzero = lane, of any size with the image's aspect ratio."""
    folder = folder / part
    try:
        photos, masks = image_files(folder / "images"), {path.stem: path for path in image_files(folder / "masks")}
    except OSError as error:
        raise DatasetError(f"{error.filename}: {error.strerror}; expected {DATA_KINDS['lanes'].layout}") from None
    paired = [(path, masks[path.stem]) for path in photos if path.stem in masks]
    if not paired:
        raise DatasetError(f"{folder}: no image has a mask of its name; expected {DATA_KINDS['lanes'].layout}")
    if len(paired) < len(photos):
        without = _few(path.name for path in photos if path.stem not in masks)
        log.warning("%s: images without a mask are left out: %s", folder, without)
    return [Item(str(path), _recording(path), partial(_with_mask, path, mask)) for path, mask in paired]


def _read_image(path: Path, mode: int = cv2.IMREAD_COLOR) -> npt.NDArray[Any]:
    """An image file as OpenCV reads it in `mode`; colours are RGB."""
    try:
        image = cv2.imread(str(path), mode)
    except cv2.error as error:  # the header claims more pixels than OpenCV allows
        raise DatasetError(f"{path}: not a readable image ({error.err})") from None
    if image is None:
        raise DatasetError(f"{path}: not a readable image")
    return np.ascontiguousarray(image[..., ::-1]) if image.ndim == 3 else image


def _with_label(path: Path, label: int) -> Sample:
    return Sample(_read_image(path), label)


def _with_boxes(path: Path, found: list[_Box], expected: tuple[int, int]) -> Sample:
    """The boxes refer to an image of the expected size; (1, 1): they are shares of the image's size."""
    image = _read_image(path)
    size = (image.shape[1], image.shape[0])
    if expected not in ((1, 1), size):
        raise DatasetError(f"{path}: is {size[0]}x{size[1]}, its annotations are for {expected[0]}x{expected[1]}")
    boxes = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
    scale = np.array(size if expected == (1, 1) else (1, 1), np.float32)
    return Sample(image, boxes=boxes * np.tile(scale, 2), classes=np.array([number for _, number in found], np.int64))


def _with_mask(path: Path, mask_path: Path) -> Sample:
    image = _read_image(path)
    # Without the second flag OpenCV keeps only the high byte of 16-bit values: small lane numbers would become 0.
    mask = _read_image(mask_path, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH)
    (height, width), (mask_height, mask_width) = image.shape[:2], mask.shape
    if abs(width * mask_height / (height * mask_width) - 1.0) > _MAX_ASPECT_DIFFERENCE:
        raise DatasetError(
            f"{mask_path}: {mask_width}x{mask_height} does not have the aspect ratio of its image, {width}x{height}"
        )
    return Sample(image, mask=np.asarray((mask > 0) * 255, np.uint8))


def _box_items(files: Sequence[tuple[Path, list[_Box], tuple[int, int]]]) -> list[Item]:
    if crowded := [path for path, boxes, _ in files if len(boxes) > MAX_BOXES]:
        log.warning("only the first %d boxes of an image are used; more are in %s", MAX_BOXES, _few(crowded))
    return [Item(str(file[0]), _recording(file[0]), partial(_with_boxes, *file)) for file in files]


def _recording(path: Path) -> str:
    """NAME of a file NAME_<frame>.jpg."""
    return str(path.with_name(re.sub(r"[_-]\d+$", "", path.stem)))


def _is_box(box: Sequence[float], width: float, height: float) -> bool:
    """Whether x1, y1, x2, y2 has an area and overlaps an image of this size."""
    x1, y1, x2, y2 = box
    return bool(np.isfinite(box).all()) and max(x1, 0) < min(x2, width) and max(y1, 0) < min(y2, height)


def _check_names(file: Path, names: Iterable[str], labels: Sequence[str]) -> None:
    if set(names).isdisjoint(labels):
        raise DatasetError(f"{file}: classes {_few(names)}; the network's classes: {_few(labels)}")


def _few(names: Iterable[Any], shown: int = 8) -> str:
    found = [str(name) for name in names]
    return ", ".join(found[:shown]) + (f" and {len(found) - shown} more" if len(found) > shown else "")
