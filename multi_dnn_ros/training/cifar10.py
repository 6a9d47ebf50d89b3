"""Reads CIFAR-10 (Krizhevsky 2009): its binary version, or images in class folders of an archive."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.samples import DatasetError, Rows, Sample
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES
from multi_dnn_ros.vision.preprocess import Preprocess

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_BATCHES = {**{f"data_batch_{k}.bin": "train" for k in range(1, 6)}, "test_batch.bin": "test"}
_EXPECTED = (
    "expected the binary version (cifar-10-binary.tar.gz, or a folder with data_batch_1.bin and so on), or "
    "<part>/<class>/*.jpg in a folder or in a .tar, .tar.gz or .tar.xz"
)

Image = npt.NDArray[np.uint8]


class Cifar10Rows(Rows):
    """Images (N, 32, 32, 3) uint8 RGB and labels (N,) int64 in memory."""

    def __init__(self, images: Image, labels: npt.NDArray[np.int64], framing: Preprocess) -> None:
        self.images, self.labels, self.framing = images, labels, framing

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        return f"image {index}"

    def sample(self, index: int) -> Sample:
        return Sample(self.images[index], label=int(self.labels[index]))


def load(path: Path, framing: Preprocess) -> dict[str, Cifar10Rows]:
    """The parts `train` and `test` of the data at `path`, shuffled, because archives may be sorted by class. Raises
    DatasetError that says what is expected.
    """
    if not path.exists():
        raise DatasetError(f"{path}: no such file or folder; {_EXPECTED}")
    images: dict[str, list[Image]] = {"train": [], "test": []}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    batches = []
    try:
        for name, content in _files(path):
            *folders, stem = name.split("/")
            if stem in _BATCHES:
                pixels, found = _records(f"{path}: {name}", content)
                images[_BATCHES[stem]] += list(pixels)
                labels[_BATCHES[stem]] += found
                batches.append(stem)
            elif stem.endswith(IMAGE_SUFFIXES) and len(folders) >= 2 and folders[-2] in images:
                if folders[-1] not in LABELS:
                    raise DatasetError(f"{path}: {name}: class {folders[-1]}; expected {', '.join(LABELS)}")
                images[folders[-2]].append(_decoded(f"{path}: {name}", content))
                labels[folders[-2]].append(LABELS.index(folders[-1]))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); {_EXPECTED}") from None
    missing = [stem for stem in _BATCHES if stem not in batches]
    if batches and missing:
        raise DatasetError(f"{path}: {missing[0]} is missing; {_EXPECTED}")
    parts = {}
    for part, pictures in images.items():
        if len(set(labels[part])) < 2:
            raise DatasetError(f"{path}: part {part} has images of {len(set(labels[part]))} classes; {_EXPECTED}")
        order = np.random.default_rng(0).permutation(len(pictures))
        parts[part] = Cifar10Rows(np.stack(pictures)[order], np.array(labels[part])[order], framing)
    return parts


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of an archive, or of a folder that has an archive or the files in it."""
    archives = sorted(path.glob("cifar*.tar*")) if path.is_dir() else [path]
    if not archives:
        for file in sorted(path.rglob("*")):
            if file.suffix in (".bin", *IMAGE_SUFFIXES) and not file.name.startswith("."):
                yield file.relative_to(path).as_posix(), file.read_bytes()
        return
    with tarfile.open(archives[0], "r:*") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None and not member.name.rpartition("/")[2].startswith("."):
                yield member.name, stream.read()


def _records(where: str, content: bytes) -> tuple[Image, list[int]]:
    if not content or len(content) % _RECORD:
        raise DatasetError(f"{where}: {len(content)} bytes; expected a multiple of {_RECORD}, a label and 32x32 pixels")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= len(LABELS):
        raise DatasetError(f"{where}: label {rows[:, 0].max()}; allowed: 0 to {len(LABELS) - 1}")
    return rows[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1), rows[:, 0].tolist()


def _decoded(where: str, content: bytes) -> Image:
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    if image is None or image.shape != (_SIDE, _SIDE, 3):
        found = "cannot be decoded" if image is None else f"is {image.shape[1]}x{image.shape[0]}"
        raise DatasetError(f"{where}: {found}; expected an image of 32x32")
    return np.asarray(image[..., ::-1], dtype=np.uint8)
