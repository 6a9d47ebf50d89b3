"""Data in folders of image files: classes, boxes in COCO's and in YOLO's format, lane masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.common.json_files import read_json_object
from multi_dnn_ros.training.samples import CROWD, MAX_BOXES, DatasetError, Rows, Sample, read_mask, read_rgb
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, image_files
from multi_dnn_ros.vision.preprocess import Preprocess

#: Maximum size of an annotation file; COCO's largest is half as large.
_MAX_JSON_BYTES = 1 << 30
#: Largest relative difference between the aspect ratios of an image and its mask, which may be smaller and rounded.
_MAX_ASPECT_DIFFERENCE = 0.05

_Box = tuple[list[float], int]  # x1, y1, x2, y2 and the class number


class _FileRows(Rows):
    """Rows that are image files. files: for each row the file, and what belongs to it."""

    files: Sequence[tuple[Path, Any]]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return str(self.files[index][0])


class ClassFolder(_FileRows):
    """DIR/<class>/*.jpg (torchvision's ImageFolder layout): classes sorted by name, images by class and name."""

    def __init__(self, folder: Path, framing: Preprocess, labels: Sequence[str] = ()) -> None:
        """labels: the expected classes in their order; empty: the existing ones. Raises DatasetError."""
        if not folder.is_dir():
            raise DatasetError(f"{folder}: no such folder; expected <class>/<image>.jpg or .png in it")
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.labels = tuple(labels) or tuple(names)
        if set(names) - set(self.labels):
            raise DatasetError(
                f"{folder}: folder {min(set(names) - set(self.labels))} is not a class of the training part"
            )
        self.files = [(path, k) for k, name in enumerate(self.labels) if name in names
                      for path in image_files(folder / name)]  # fmt: skip
        if not self.files:
            raise DatasetError(f"{folder}: no images; expected <class>/<image>.jpg or .png in it")
        if len(self.labels) < 2:
            raise DatasetError(f"{folder}: one class only, {self.labels[0]}; expected at least two class folders")
        for k, name in enumerate(self.labels):
            if not labels and not any(label == k for _, label in self.files):
                raise DatasetError(f"{folder / name}: no images ({', '.join(IMAGE_SUFFIXES)})")
        self.framing = framing

    def sample(self, index: int) -> Sample:
        path, label = self.files[index]
        return Sample(read_rgb(path), label=label)


class _BoxRows(_FileRows):
    """Image files with boxes in their pixels. sizes: width and height by the annotations; None: not stated."""

    def __init__(
        self, files: Sequence[tuple[Path, list[_Box]]], framing: Preprocess, unusable: Sequence[str],
        sizes: Sequence[tuple[float, float]] | None = None,
    ) -> None:  # fmt: skip
        self.files, self.framing, self._sizes = files, framing, sizes
        crowded = [
            f"{path}: {len(boxes)} boxes, of which the first {MAX_BOXES} are used"
            for path, boxes in files
            if len(boxes) > MAX_BOXES
        ]
        self.unusable = (*unusable, *crowded)

    def sample(self, index: int) -> Sample:
        """Raises DatasetError also for an image that was resized or replaced, so that its size is not that of its
        annotations.
        """
        path, found = self.files[index]
        image = read_rgb(path)
        height, width = image.shape[:2]
        if self._sizes is not None and (width, height) != tuple(map(round, self._sizes[index])):
            expected = "x".join(f"{side:g}" for side in self._sizes[index])
            raise DatasetError(f"{path}: is {width}x{height}, its annotations are for {expected}")
        boxes = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
        if self._sizes is None:  # YOLO's boxes are shares of the image's size
            boxes *= np.array([width, height] * 2, np.float32)
        return Sample(image, boxes=boxes, classes=np.array([number for _, number in found], np.int64))


def coco_boxes(
    images: Path, annotations: Path, framing: Preprocess, labels: Sequence[str], *, empty: bool = False
) -> Rows:
    """COCO's detection format: a folder of images and one JSON of images, annotations and categories.

    A crowd (`iscrowd`) of class k has the class number CROWD - k. Categories are matched to the network's labels by
    name. empty: accept data without any object, for counting false detections. Raises DatasetError, which names the
    file and what is expected.
    """
    if not images.is_dir():
        raise DatasetError(f"{images}: no such folder of images")
    content = read_json_object(annotations, "COCO's annotations", DatasetError, _MAX_JSON_BYTES)
    unusable: list[str] = []
    try:
        names = {int(row["id"]): str(row["name"]) for row in content["categories"]}
        entries = {
            int(row["id"]): (str(row["file_name"]), float(row["width"]), float(row["height"]))
            for row in content["images"]
        }
        boxes: dict[int, list[_Box]] = {key: [] for key in entries}
        known = {key: labels.index(name) for key, name in names.items() if name in labels}
        for row in content["annotations"]:
            category, x = int(row["category_id"]), [float(value) for value in row["bbox"]]
            if category not in names or int(row["image_id"]) not in entries or len(x) != 4:
                raise KeyError(f"annotation {row.get('id')}: image, category or bbox")
            left, top, box_width, box_height = x
            width, height = entries[int(row["image_id"])][1:]
            inside = min(left + box_width, top + box_height, width - left, height - top) > 0
            if not np.isfinite(x).all() or min(box_width, box_height) <= 0 or not inside:
                unusable.append(f"annotation {row.get('id')}: box {x} is empty or outside the image")
            elif category in known:
                number = CROWD - known[category] if row.get("iscrowd") else known[category]
                boxes[int(row["image_id"])].append(([left, top, left + box_width, top + box_height], number))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:  # OverflowError: int(inf)
        raise DatasetError(
            f"{annotations}: not COCO's detection format ({type(error).__name__}: {error}); expected images "
            "(id, file_name, width, height), categories (id, name), annotations (image_id, category_id, bbox)"
        ) from None
    for name, width, height in entries.values():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DatasetError(f"{annotations}: file_name '{name}' points outside {images}")
        if not (0 < width < math.inf and 0 < height < math.inf):
            raise DatasetError(f"{annotations}: image {name} is {width} x {height}")
    if not known:
        raise DatasetError(
            f"{annotations}: categories {_few(names.values())}; the network's classes are {_few(labels)}"
        )
    if not empty and not any(boxes.values()):
        raise DatasetError(f"{annotations}: no box of the classes {_few(labels)}")
    files = [(images / entries[key][0], boxes[key]) for key in sorted(entries)]
    missing = [path for path, _ in files if not path.is_file()]
    if missing:
        raise DatasetError(f"{missing[0]}: no such image ({len(missing)} of {len(files)} are missing)")
    return _BoxRows(files, framing, unusable, [entries[key][1:] for key in sorted(entries)])


def yolo_boxes(
    images: Path, truth: Path, names: Sequence[str], framing: Preprocess, labels: Sequence[str], *, empty: bool = False
) -> Rows:
    """YOLO's format: NAME.jpg in one folder, NAME.txt in another, a line `class x y width height` per box, with the
    centre and the size as shares of the image's size.

    names: the classes by number. A missing file means an image without objects. The other arguments and errors are
    those of `coco_boxes`.
    """
    for folder in (images, truth):
        if not folder.is_dir():
            raise DatasetError(f"{folder}: no such folder; expected images/<part>/NAME.jpg and labels/<part>/NAME.txt")
    numbers = [labels.index(name) if name in labels else -1 for name in names]
    if max(numbers, default=-1) < 0:
        raise DatasetError(f"{truth}: classes {_few(names)}; the network's classes are {_few(labels)}")
    files: list[tuple[Path, list[_Box]]] = []
    unusable: list[str] = []
    for path in image_files(images):
        file, boxes = truth / f"{path.stem}.txt", []
        for line, text in enumerate(file.read_text(errors="replace").splitlines() if file.is_file() else (), 1):
            where = f"{file}, line {line}"
            try:
                number, x, y, width, height = (float(word) for word in text.split())
                target = numbers[int(number)] if number >= 0 else numbers[len(numbers)]
            except (ValueError, IndexError, OverflowError):
                raise DatasetError(
                    f"{where}: '{text[:60]}'; expected `class x y width height`, class 0 to {len(names) - 1}"
                ) from None
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            if not np.isfinite(box).all() or min(width, height) <= 0 or max(box[:2]) >= 1 or min(box[2:]) <= 0:
                unusable.append(f"{where}: the box is empty or outside the image")
            elif target >= 0:
                boxes.append((box, target))
        files.append((path, boxes))
    if not files:
        raise DatasetError(f"{images}: no images ({', '.join(IMAGE_SUFFIXES)})")
    if not empty and not any(boxes for _, boxes in files):
        raise DatasetError(f"{truth}: no box of the classes {_few(labels)}")
    return _BoxRows(files, framing, unusable)


class LaneMasks(_FileRows):
    """DIR/images/NAME.jpg with DIR/masks/NAME.png: nonzero = lane; masks of any size."""

    def __init__(self, folder: Path, framing: Preprocess) -> None:
        """Raises DatasetError."""
        images, masks = folder / "images", folder / "masks"
        for part in (images, masks):
            if not part.is_dir():
                raise DatasetError(f"{part}: no such folder; expected images/NAME.jpg and masks/NAME.png in {folder}")
        by_name, photos = ({path.stem: path for path in image_files(folder)} for folder in (masks, images))
        hidden = [
            path
            for folder, used in ((masks, by_name), (images, photos))
            for path in image_files(folder)
            if used[path.stem] != path
        ]
        self.files = [(path, by_name[stem]) for stem, path in photos.items() if stem in by_name]
        self.unusable = (
            *(f"{path}: no mask of this name in {masks}" for stem, path in photos.items() if stem not in by_name),
            *(f"{path}: no image of this name in {images}" for stem, path in by_name.items() if stem not in photos),
            *(f"{path}: another file with this name and another suffix is used" for path in hidden),
        )
        if not self.files:
            raise DatasetError(f"{folder}: no image has a mask of its name; expected images/NAME.jpg, masks/NAME.png")
        self.framing = framing

    def sample(self, index: int) -> Sample:
        """Raises DatasetError also if the mask does not have the aspect ratio of the image."""
        path, mask_path = self.files[index]
        image, mask = read_rgb(path), read_mask(mask_path)
        ratio = image.shape[1] * mask.shape[0] / (image.shape[0] * mask.shape[1])
        if abs(ratio - 1.0) > _MAX_ASPECT_DIFFERENCE:
            raise DatasetError(
                f"{mask_path}: {mask.shape[1]}x{mask.shape[0]} does not have the aspect ratio of its image, "
                f"{image.shape[1]}x{image.shape[0]}"
            )
        return Sample(image, mask=mask)


def _few(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
