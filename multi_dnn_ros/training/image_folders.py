"""Data in folders of image files: classes, boxes in COCO's and in YOLO's format, lane masks."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import CROWD, MAX_BOXES, Item, Rows, Sample, read_image
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, image_files
from multi_dnn_ros.vision.preprocess import Preprocess

log = logging.getLogger(__name__)

#: Largest relative difference between the aspect ratios of an image and its mask, which may be smaller and rounded.
_MAX_ASPECT_DIFFERENCE = 0.05
#: Longest list of names in a message.
_SHOWN = 8

_Box = tuple[list[float], int]  # x1, y1, x2, y2 and the class number


def class_rows(folder: Path, framing: Preprocess, labels: Sequence[str]) -> Rows:
    """DIR/<class>/*.jpg (torchvision's ImageFolder layout), images by class and name. labels: the classes."""
    unknown = set(class_names(folder)) - set(labels)
    if unknown:
        raise DatasetError(f"{folder}: folder {min(unknown)} is not a class of the training part")
    items = [
        Item(str(path), str(path), partial(_with_label, path, number))
        for number, name in enumerate(labels)
        if (folder / name).is_dir()
        for path in image_files(folder / name)
    ]
    if not items:
        raise DatasetError(f"{folder}: no images; expected <class>/<image> ({', '.join(IMAGE_SUFFIXES)}) in it")
    return Rows(items, framing)


def _with_label(path: Path, label: int) -> Sample:
    return Sample(read_image(path), label=label)


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders of a part, sorted by name."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))


def coco_rows(images: Path, annotations: Path, framing: Preprocess, labels: Sequence[str]) -> Rows:
    """COCO's detection format: a folder of images and one JSON of images, annotations and categories.

    A crowd (`iscrowd`) of class k has the class number CROWD - k. Categories are matched to the network's labels by
    name. Empty boxes and boxes outside their image are left out. Raises DatasetError, which names the file and what is
    expected; also for an image whose size differs from that in its annotations.
    """
    try:
        content = json.loads(annotations.read_text(encoding="utf-8"))
        names = {int(row["id"]): str(row["name"]) for row in content["categories"]}
        sizes = {int(row["id"]): (int(row["width"]), int(row["height"])) for row in content["images"]}
        paths = {int(row["id"]): images / str(row["file_name"]) for row in content["images"]}
        boxes: dict[int, list[_Box]] = {key: [] for key in sizes}
        known = {key: labels.index(name) for key, name in names.items() if name in labels}
        for row in content["annotations"]:
            category, image = int(row["category_id"]), int(row["image_id"])
            left, top, width, height = (float(value) for value in row["bbox"])
            box = [left, top, left + width, top + height]
            if category not in names or image not in sizes:
                raise KeyError(f"annotation {row.get('id')}: image or category")
            if category in known and _is_box(box, *sizes[image]):
                boxes[image].append((box, CROWD - known[category] if row.get("iscrowd") else known[category]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, OSError) as error:
        raise DatasetError(
            f"{annotations}: not COCO's detection format ({type(error).__name__}: {error}); expected images "
            "(id, file_name, width, height), categories (id, name), annotations (image_id, category_id, bbox)"
        ) from None
    if not known:
        raise DatasetError(f"{annotations}: categories {_few(names.values())}; the network's classes: {_few(labels)}")
    missing = [path for path in paths.values() if not path.is_file()]
    if missing or not paths:
        raise DatasetError(f"{[*missing, images][0]}: no such image ({len(missing)} of {len(paths)} are missing)")
    return _box_rows([(paths[key], boxes[key], sizes[key]) for key in sorted(paths)], framing)


def _box_rows(files: Sequence[tuple[Path, list[_Box], tuple[int, int]]], framing: Preprocess) -> Rows:
    crowded = [path for path, boxes, _ in files if len(boxes) > MAX_BOXES]
    if crowded:
        log.warning("only the first %d boxes of an image are used; more are in %s", MAX_BOXES, _few(crowded))
    return Rows([Item(str(file[0]), _recording(file[0]), partial(_with_boxes, *file)) for file in files], framing)


def _recording(path: Path) -> str:
    """NAME of a file NAME_<frame>.jpg."""
    return str(path.with_name(re.sub(r"[_-]\d+$", "", path.stem)))


def _is_box(box: Sequence[float], width: float, height: float) -> bool:
    """Whether x1, y1, x2, y2 has an area and overlaps an image of this size."""
    x1, y1, x2, y2 = box
    return bool(np.isfinite(box).all()) and max(x1, 0) < min(x2, width) and max(y1, 0) < min(y2, height)


def _with_boxes(path: Path, found: list[_Box], expected: tuple[int, int]) -> Sample:
    """The boxes refer to an image of the expected size; (1, 1): they are shares of the image's size."""
    image = read_image(path)
    size = (image.shape[1], image.shape[0])
    if expected not in ((1, 1), size):
        raise DatasetError(f"{path}: is {size[0]}x{size[1]}, its annotations are for {expected[0]}x{expected[1]}")
    boxes = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
    scale = np.array(size if expected == (1, 1) else (1, 1), np.float32)
    return Sample(image, boxes=boxes * np.tile(scale, 2), classes=np.array([number for _, number in found], np.int64))


def yolo_names(folder: Path) -> list[str]:
    """The class names by number in the only .yaml file of a folder. Raises DatasetError."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(files) != 1:
        raise DatasetError(f"{folder}: {len(files)} .yaml files; expected one, with the class names as `names`")
    try:
        names = yaml.safe_load(files[0].read_text(encoding="utf-8"))["names"]
        return [str(each) for each in (names.values() if isinstance(names, dict) else names)]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{files[0]}: no class names ({error}); expected a list `names`") from None


def yolo_rows(images: Path, truth: Path, names: Sequence[str], framing: Preprocess, labels: Sequence[str]) -> Rows:
    """YOLO's format: NAME.jpg in one folder, NAME.txt in another, a line `class x y width height` per box, with the
    centre and the size as shares of the image's size.

    names: the classes by number. A missing file means an image without objects. Boxes are left out, and errors raised,
    as by `coco_rows`.
    """
    numbers = {number: labels.index(name) for number, name in enumerate(names) if name in labels}
    if not numbers:
        raise DatasetError(f"{truth}: classes {_few(names)}; the network's classes: {_few(labels)}")
    files: list[tuple[Path, list[_Box], tuple[int, int]]] = []
    for path in image_files(images):
        file, boxes = truth / f"{path.stem}.txt", []
        for line, text in enumerate(file.read_text(errors="replace").splitlines() if file.is_file() else (), 1):
            try:
                number, x, y, width, height = (float(word) for word in text.split())
                if number not in range(len(names)):
                    raise ValueError
            except ValueError:
                raise DatasetError(
                    f"{file}, line {line}: '{text[:60]}'; expected `class x y width height`, class 0 to "
                    f"{len(names) - 1}"
                ) from None
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            if number in numbers and _is_box(box, 1, 1):
                boxes.append((box, numbers[int(number)]))
        files.append((path, boxes, (1, 1)))
    if not files:
        raise DatasetError(f"{images}: no images ({', '.join(IMAGE_SUFFIXES)})")
    return _box_rows(files, framing)


def lane_rows(folder: Path, framing: Preprocess) -> Rows:
    """DIR/images/NAME.jpg with DIR/masks/NAME.png: nonzero = lane; masks of any size. Raises DatasetError; also for a
    mask that does not have the aspect ratio of its image.
    """
    for part in (folder / "images", folder / "masks"):
        if not part.is_dir():
            raise DatasetError(f"{part}: no such folder; expected images/NAME.jpg and masks/NAME.png in {folder}")
    photos, masks = image_files(folder / "images"), {path.stem: path for path in image_files(folder / "masks")}
    items = [
        Item(str(path), _recording(path), partial(_with_mask, path, masks[path.stem]))
        for path in photos
        if path.stem in masks
    ]
    if not items:
        raise DatasetError(f"{folder}: no image has a mask of its name; expected images/NAME.jpg, masks/NAME.png")
    if len(items) < len(photos):
        without = _few(path.name for path in photos if path.stem not in masks)
        log.warning("%s: images without a mask are left out: %s", folder, without)
    return Rows(items, framing)


def _with_mask(path: Path, mask_path: Path) -> Sample:
    image = read_image(path)
    # Without the second flag OpenCV keeps only the high byte of 16-bit values: small lane numbers would become 0.
    mask = read_image(mask_path, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH)
    ratio = image.shape[1] * mask.shape[0] / (image.shape[0] * mask.shape[1])
    if abs(ratio - 1.0) > _MAX_ASPECT_DIFFERENCE:
        raise DatasetError(
            f"{mask_path}: {mask.shape[1]}x{mask.shape[0]} does not have the aspect ratio of its image, "
            f"{image.shape[1]}x{image.shape[0]}"
        )
    return Sample(image, mask=np.asarray((mask > 0) * 255, np.uint8))


def _few(names: Iterable[Any]) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")
