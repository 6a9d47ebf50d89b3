"""Images for int8 calibration: those of a folder, or the generated road images of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, image_files

Image = npt.NDArray[np.uint8]

#: Number of images. With fewer the ranges are unreliable; more take longer and change little.
MIN_IMAGES, MAX_IMAGES = 8, 32
_PACKAGE_FOLDER = Path(__file__).resolve().parents[1] / "calibration_images"


class CalibrationError(ValueError):
    """A folder of images for calibration cannot be used; the message names it and what is expected."""


def calibration_files(folder: str, min_images: int = MIN_IMAGES) -> Sequence[Path]:
    """At most MAX_IMAGES image files of `folder`, evenly spaced by name; "": the files of this package.

    Raises CalibrationError, also for fewer than `min_images` images.
    """
    try:
        path = Path(folder).expanduser() if folder else _PACKAGE_FOLDER
    except RuntimeError:
        raise CalibrationError(f"{folder}: the home folder of this user is not known") from None
    try:
        if not path.is_dir():
            raise CalibrationError(f"{path}: no such folder; expected: a folder with at least {min_images} image(s)")
        found = image_files(path)
    except OSError as error:
        raise CalibrationError(f"{path} cannot be read: {error.strerror}") from None
    if len(found) < min_images:
        raise CalibrationError(
            f"{path}: {len(found)} image(s) ({', '.join(IMAGE_SUFFIXES)}); expected: at least {min_images}"
        )
    count = min(MAX_IMAGES, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def calibration_inputs(
    folder: str,
    preprocess: Callable[[Image], tuple[Any]],
    enlarge: Callable[[tuple[int, int]], tuple[int, int]] | None = None,
) -> list[tuple[Any]]:
    """The images of :func:`calibration_files` as a DNN's inputs, made by `preprocess`.

    enlarge: (H, W) of an image -> the (H, W) that it must have, see View.enlarge_to_min; only this package's images are
    enlarged. Raises CalibrationError, also for an image that `preprocess` refuses.
    """
    inputs = []
    for file, image in named_images(folder):
        if enlarge is not None and not folder:
            image = _enlarged(image, enlarge((image.shape[0], image.shape[1])))
        try:
            inputs.append(preprocess(image))
        except ValueError as error:
            raise CalibrationError(f"{file}: {error}") from None
    return inputs


def _enlarged(image: Image, size: tuple[int, int]) -> Image:
    """`image`, (H, W, 3), with `size` (H, W)."""
    if tuple(image.shape[:2]) == size:
        return image
    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR), np.uint8)


def calibration_images(folder: str) -> list[Image]:
    """The images as (H, W, 3) uint8 RGB. Raises CalibrationError, which names the first unreadable file."""
    return [image for _, image in named_images(folder)]


def named_images(folder: str, min_images: int = MIN_IMAGES) -> list[tuple[Path, Image]]:
    """As :func:`calibration_images`, each with its file."""
    images = []
    for file in calibration_files(folder, min_images):
        image = cv2.imread(str(file), cv2.IMREAD_COLOR)
        if image is None:
            raise CalibrationError(f"{file}: not a readable image")
        images.append((file, np.ascontiguousarray(image[..., ::-1], np.uint8)))
    return images
