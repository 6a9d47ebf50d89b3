"""Images of a data set as a camera would deliver them, with their truth in pixels of the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.data import SEEDS, DataRequest, Task, open_data
from multi_dnn_ros.training.datasets import DatasetError, RoadFrame, read_mask, read_rgb, road_frames
from multi_dnn_ros.training.image_files import CocoBoxes, LaneMasks
from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.training.parts import evenly_spaced
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.training.setup import truth_of
from multi_dnn_ros.vision.preprocess import Preprocess

#: Size (width, height) of generated images.
GENERATED = (640, 480)
#: The kinds of truth in each kind of data set that has whole images.
_TRUTHS = {"coco": ("boxes",), "lanes": ("lanes",), "road": ("boxes", "lanes"), "drive": ("lanes",)}


@dataclass(frozen=True)
class WholeImage:
    """image: (H, W, 3) uint8 RGB. boxes: true boxes, with class ids into `WholeImages.labels`; None: unknown. lanes:
    mask of any size, nonzero = lane; None: unknown.
    """

    name: str
    image: npt.NDArray[np.uint8]
    boxes: Truth | None = None
    lanes: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class WholeImages:
    """The test part of a data set. truths: kinds that it has, "boxes" or "lanes". labels: class names of boxes."""

    name: str
    truths: tuple[str, ...]
    labels: tuple[str, ...]
    count: int
    read: Callable[[int], WholeImage]

    def __iter__(self) -> Iterator[WholeImage]:
        return (self.read(index) for index in range(self.count))


def whole_images(name: str, labels: Sequence[str], scenes: int, limit: int | None = None) -> WholeImages:
    """The test part of data ``KIND:PATH``: coco, lanes, road or drive.

    labels: classes whose true boxes are wanted. scenes: number of generated scenes for training; the test part has a
    twelfth of it, at least 8. limit: maximum number of images, which are evenly spaced. Raises
    DatasetError for another kind and for errors in the data.
    """
    kind = name.partition(":")[0]
    if kind not in _TRUTHS:
        raise DatasetError(f"data '{name}': kind '{kind}' has no images of a camera; allowed: {', '.join(_TRUTHS)}")
    truths, names = _TRUTHS[kind], tuple(labels)
    if kind == "road":
        generator = SceneGenerator(*GENERATED, SEEDS["test"])
        count, read = max(8, scenes // 12), partial(_generated, generator)
        names = tuple(LABELS)
    elif kind == "drive":
        frames = road_frames(_folder(name), "video")
        count, read = len(frames), partial(_driven, frames)
    else:
        task: Task = "boxes" if kind == "coco" else "lanes"
        rows = open_data(name, DataRequest(task, Preprocess(*GENERATED), names)).part("test")
        count = len(rows)
        if isinstance(rows, CocoBoxes):
            read = partial(_annotated, rows)
        else:
            assert isinstance(rows, LaneMasks)  # of kind "lanes"
            read = partial(_masked, rows)
    chosen = evenly_spaced(count if limit is None else limit, count)
    return WholeImages(name, truths, names, len(chosen), lambda index: read(chosen[index]))


def _folder(name: str) -> Path:
    return Path(name.partition(":")[2])


def _generated(generator: SceneGenerator, index: int) -> WholeImage:
    scene = generator.scene(index)
    return WholeImage(
        f"scene {index}", scene.image, Truth(scene.boxes, scene.class_ids, scene.ignored), scene.lane_mask
    )


def _driven(frames: Sequence[RoadFrame], index: int) -> WholeImage:
    frame = frames[index]
    return WholeImage(frame.name, frame.image, lanes=frame.mask)


def _annotated(rows: CocoBoxes, index: int) -> WholeImage:
    file, _, _, found = rows.rows[index]
    boxes = np.array([box for box, _ in found], np.float32).reshape(-1, 4)
    classes = np.array([number for _, number in found], np.int64)
    return WholeImage(file, rows.image(index), truth_of(boxes, classes))


def _masked(rows: LaneMasks, index: int) -> WholeImage:
    image, mask = rows.files[index]
    return WholeImage(str(image), read_rgb(image), lanes=read_mask(mask))
