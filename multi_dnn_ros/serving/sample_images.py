"""Images of a folder for int8 calibration; without a folder those of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, image_files

Image = npt.NDArray[np.uint8]

#: Number of images. With fewer the ranges of int8 are unreliable; more take longer and change little.
MIN_IMAGES, MAX_IMAGES = 8, 32
_PACKAGE_FOLDER = Path(__file__).resolve().parents[1] / "calibration_images"


class ImagesError(ValueError):
    """A folder of images cannot be used; the message names it and what is expected."""


def sample_files(folder: str) -> Sequence[Path]:
    """At most MAX_IMAGES image files of `folder`, evenly spaced by name; "": generated road images of this package.

    Raises ImagesError, also for fewer than MIN_IMAGES images.
    """
    try:
        path = Path(folder).expanduser() if folder else _PACKAGE_FOLDER
        if not path.is_dir():
            raise ImagesError(f"{path}: no such folder; expected: a folder with at least {MIN_IMAGES} image(s)")
        found = image_files(path)
    except RuntimeError:
        raise ImagesError(f"{folder}: the home folder of this user is not known") from None
    except OSError as error:
        raise ImagesError(f"{path} cannot be read: {error.strerror}") from None
    if len(found) < MIN_IMAGES:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        raise ImagesError(f"{path}: {len(found)} image(s) ({suffixes}); expected: at least {MIN_IMAGES}")
    count = min(MAX_IMAGES, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def sample_images(folder: str) -> list[tuple[Path, Image]]:
    """The files of :func:`sample_files`, each with its image, (H, W, 3) uint8 RGB. Raises ImagesError."""
    images = []
    for file in sample_files(folder):
        image = cv2.imread(str(file), cv2.IMREAD_COLOR)
        if image is None:
            raise ImagesError(f"{file}: not a readable image")
        images.append((file, np.ascontiguousarray(image[..., ::-1], np.uint8)))
    return images


def calibration_inputs(
    folder: str, preprocess: Callable[[Image], tuple[Any]], enlarge: Callable[[tuple[int, int]], tuple[int, int]]
) -> list[tuple[Any]]:
    """The sample images as a DNN's inputs, made by `preprocess`.

    enlarge: (H, W) of an image -> the (H, W) that the DNN needs, see View.enlarge_to_min; only this package's images
    are enlarged. Raises ImagesError, also for an image that `preprocess` refuses.
    """
    inputs = []
    for file, image in sample_images(folder):
        height, width = enlarge((image.shape[0], image.shape[1]))
        if not folder and (height, width) != image.shape[:2]:
            image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), np.uint8)
        try:
            inputs.append(preprocess(image))
        except ValueError as error:
            raise ImagesError(f"{file}: {error}") from None
    return inputs
