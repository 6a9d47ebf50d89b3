"""Images and annotations in files: class folders, COCO detection, lane images with masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.common.json_files import read_json_object
from multi_dnn_ros.training.batches import Batch
from multi_dnn_ros.training.datasets import (
    CROWD,
    MAX_BOXES,
    NO_BOX,
    DatasetError,
    framed,
    framed_mask,
    read_mask,
    read_rgb,
)
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, image_files
from multi_dnn_ros.vision.preprocess import Preprocess

#: Maximum size of an annotation file; COCO's largest is half as large.
_MAX_JSON_BYTES = 1 << 30
#: Largest relative difference between the aspect ratios of an image and its mask, which may be smaller and rounded.
_MAX_ASPECT_DIFFERENCE = 0.05


class ClassFolder:
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
        self.unusable: tuple[str, ...] = ()

    def name(self, index: int) -> str:
        return str(self.files[index][0])

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Batch:
        """image (3, h, w) uint8, label () int64."""
        path, label = self.files[index]
        return {"image": torch.from_numpy(framed(read_rgb(path), self.framing)), "label": torch.tensor(label)}


class CocoBoxes:
    """COCO's detection format: a folder of images and one JSON of images, annotations and categories.

    A crowd (`iscrowd`) of class k has the class number CROWD - k. Categories are matched to the network's labels by
    name.
    """

    def __init__(
        self, images: Path, annotations: Path, framing: Preprocess, labels: Sequence[str], *, empty: bool = False
    ) -> None:
        """empty: accept data without any object, for counting false detections. Raises DatasetError, which names the
        file and what is expected.
        """
        if not images.is_dir():
            raise DatasetError(f"{images}: no such folder of images")
        content = read_json_object(annotations, "COCO's annotations", DatasetError, _MAX_JSON_BYTES)
        try:
            names = {int(row["id"]): str(row["name"]) for row in content["categories"]}
            entries = {
                int(row["id"]): (str(row["file_name"]), float(row["width"]), float(row["height"]))
                for row in content["images"]
            }
            boxes: dict[int, list[tuple[list[float], int]]] = {key: [] for key in entries}
            known = {key: labels.index(name) for key, name in names.items() if name in labels}
            unusable: list[str] = []
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
                    boxes[int(row["image_id"])].append(([x[0], x[1], x[0] + x[2], x[1] + x[3]], number))
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
        self.labels = tuple(labels)
        self.images, self.framing = images, framing
        self.rows = [(*entries[key], boxes[key]) for key in sorted(entries)]
        missing = [name for name, *_ in self.rows if not (images / name).is_file()]
        if missing:
            raise DatasetError(f"{images / missing[0]}: no such image ({len(missing)} of {len(self.rows)} are missing)")
        for name, _, _, found in self.rows:
            if len(found) > MAX_BOXES:
                unusable.append(f"{images / name}: {len(found)} boxes, of which the first {MAX_BOXES} are used")
        self.unusable = tuple(unusable)

    def name(self, index: int) -> str:
        return str(self.images / self.rows[index][0])

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """The image of row `index`, (height, width, 3) uint8 RGB. Raises DatasetError if it was resized or replaced, so
        that its size is not that of its annotations.
        """
        name, width, height, _ = self.rows[index]
        image = read_rgb(self.images / name)
        if image.shape[:2] != (round(height), round(width)):
            raise DatasetError(
                f"{self.images / name}: is {image.shape[1]}x{image.shape[0]}, its annotations are for "
                f"{width:g}x{height:g}"
            )
        return image

    def read(self, index: int) -> Batch:
        """image (3, h, w) uint8, boxes (MAX_BOXES, 4) float32 in input pixels, classes (MAX_BOXES,) int64. Raises
        DatasetError like `image`.
        """
        image, found = self.image(index), self.rows[index][3]
        boxes, classes = torch.zeros(MAX_BOXES, 4), torch.full((MAX_BOXES,), NO_BOX)
        area = self.framing.geometry((image.shape[0], image.shape[1]))
        scale = torch.tensor([area.scale_x, area.scale_y] * 2)
        offset = torch.tensor([area.left, area.top] * 2)
        for k, (box, number) in enumerate(found[:MAX_BOXES]):
            boxes[k], classes[k] = torch.tensor(box) * scale + offset, number
        return {"image": torch.from_numpy(framed(image, self.framing)), "boxes": boxes, "classes": classes}


class LaneMasks:
    """DIR/images/NAME.jpg with DIR/masks/NAME.png: nonzero = lane; masks of any size."""

    labels = ("lane",)

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

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Batch:
        """image (3, h, w) uint8, mask (1, h, w) uint8, 0..255 = share of the pixel that is lane. Raises DatasetError
        if the mask does not have the aspect ratio of the image.
        """
        path, mask_path = self.files[index]
        image, mask = read_rgb(path), read_mask(mask_path)
        ratio = image.shape[1] * mask.shape[0] / (image.shape[0] * mask.shape[1])
        if abs(ratio - 1.0) > _MAX_ASPECT_DIFFERENCE:
            raise DatasetError(
                f"{mask_path}: {mask.shape[1]}x{mask.shape[0]} does not have the aspect ratio of its image, "
                f"{image.shape[1]}x{image.shape[0]}"
            )
        lane = framed_mask(mask, self.framing, (image.shape[0], image.shape[1]))
        return {"image": torch.from_numpy(framed(image, self.framing)), "mask": torch.from_numpy(lane)}

    def name(self, index: int) -> str:
        return str(self.files[index][0])


def _few(names: Any) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
