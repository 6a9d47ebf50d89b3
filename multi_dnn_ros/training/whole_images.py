"""Images of a data set as a camera would deliver them, with their truth in pixels of the image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common import extensions
from multi_dnn_ros.training.data import SEEDS, DataRequest, Rows, Task, open_data
from multi_dnn_ros.training.data_kinds import DATA_KINDS
from multi_dnn_ros.training.datasets import DatasetError, RoadFrame, read_mask, read_rgb, road_frames
from multi_dnn_ros.training.image_files import CocoBoxes, LaneMasks
from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.training.parts import evenly_spaced
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.training.setup import truth_of
from multi_dnn_ros.vision.preprocess import Preprocess

#: Size (width, height) of generated images.
GENERATED = (640, 480)


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


@dataclass(frozen=True)
class ImageRequest:
    """What the images of a kind of data are opened with.

    name: KIND:PATH. labels: classes whose true boxes are wanted. scenes: number of generated scenes for training.
    """

    name: str
    labels: tuple[str, ...]
    scenes: int

    @property
    def folder(self) -> Path:
        """The path in the name."""
        return Path(self.name.partition(":")[2])


@dataclass(frozen=True)
class Images:
    """All images of the test part of a kind of data. read: image 0 .. count - 1. labels: class names of their boxes."""

    count: int
    read: Callable[[int], WholeImage]
    labels: tuple[str, ...]


def whole_images(name: str, labels: Sequence[str], scenes: int, limit: int | None = None) -> WholeImages:
    """The test part of data ``KIND:PATH``, of a kind with images of a camera.

    labels: classes whose true boxes are wanted. scenes: number of generated scenes for training; the test part has a
    twelfth of it, at least 8. limit: maximum number of images, which are evenly spaced. Raises
    DatasetError for another kind and for errors in the data.
    """
    kind = name.partition(":")[0]
    kinds = {known: spec for known, spec in DATA_KINDS.items() if spec.whole_images}
    if kind not in kinds:
        raise DatasetError(f"data '{name}': kind '{kind}' has no images of a camera; allowed: {', '.join(kinds)}")
    open_images: Callable[[ImageRequest], Images] = extensions.load(kinds[kind].whole_images)
    images = open_images(ImageRequest(name, tuple(labels), scenes))
    chosen = evenly_spaced(images.count if limit is None else limit, images.count)
    return WholeImages(name, kinds[kind].tasks, images.labels, len(chosen), lambda index: images.read(chosen[index]))


def road_images(request: ImageRequest) -> Images:
    """Generated scenes, whose boxes are of the classes that the generator draws."""
    generator = SceneGenerator(*GENERATED, SEEDS["test"])
    return Images(max(8, request.scenes // 12), partial(_generated, generator), tuple(LABELS))


def drive_images(request: ImageRequest) -> Images:
    """The frames of a video that have a lane mask."""
    frames = road_frames(request.folder, "video")
    return Images(len(frames), partial(_driven, frames), request.labels)


def coco_images(request: ImageRequest) -> Images:
    """The images of COCO's val part."""
    rows = _test_rows(request, "boxes")
    assert isinstance(rows, CocoBoxes)
    return Images(len(rows), partial(_annotated, rows), request.labels)


def lane_images(request: ImageRequest) -> Images:
    """The images of data `lanes`."""
    rows = _test_rows(request, "lanes")
    assert isinstance(rows, LaneMasks)
    return Images(len(rows), partial(_masked, rows), request.labels)


def _test_rows(request: ImageRequest, task: Task) -> Rows:
    return open_data(request.name, DataRequest(task, Preprocess(*GENERATED), request.labels)).part("test")


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
