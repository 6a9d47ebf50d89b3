"""Reads CIFAR-10 (Krizhevsky 2009): its binary version, or JPEGs in class folders of an archive."""

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
_FILES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
_EXPECTED = (
    "expected the binary version (cifar-10-binary.tar.gz, or a folder with data_batch_1.bin and so on), or "
    "<part>/<class>/*.jpg in a folder or in a .tar, .tar.gz or .tar.xz"
)
#: Maximum size of a file in an archive: a batch has 31 MB.
_MAX_BYTES = 64 << 20

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
    batches: dict[str, list[tuple[Image, int]]] = {}
    images: dict[str, list[tuple[Image, int]]] = {part: [] for part in _FILES}
    try:
        for name, content in _files(path):
            folders, stem = name.split("/")[:-1], name.rsplit("/", 1)[-1]
            if any(stem in stems for stems in _FILES.values()):
                batches[stem] = _records(f"{path}: {name}", content)
            elif stem.endswith(IMAGE_SUFFIXES) and len(folders) >= 2 and folders[-2] in images:
                if folders[-1] not in LABELS:
                    raise DatasetError(f"{path}: {name}: class {folders[-1]}; expected {', '.join(LABELS)}")
                images[folders[-2]].append((_decoded(f"{path}: {name}", content), LABELS.index(folders[-1])))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); {_EXPECTED}") from None
    missing = [stem for stems in _FILES.values() for stem in stems if stem not in batches]
    if batches and missing:
        raise DatasetError(f"{path}: {missing[0]} is missing; {_EXPECTED}")
    if batches:
        images = {part: [row for stem in stems for row in batches[stem]] for part, stems in _FILES.items()}
    return {part: _shuffled(path, part, rows, framing) for part, rows in images.items()}


def _shuffled(path: Path, part: str, rows: list[tuple[Image, int]], framing: Preprocess) -> Cifar10Rows:
    if not rows:
        raise DatasetError(f"{path}: no CIFAR-10 in it; {_EXPECTED}")
    pixels, labels = np.stack([image for image, _ in rows]), np.array([label for _, label in rows])
    if len(set(labels.tolist())) < 2:
        raise DatasetError(f"{path}: part {part} has images of one class only, {LABELS[labels[0]]}")
    order = np.random.default_rng(0).permutation(len(rows))
    return Cifar10Rows(pixels[order], labels[order], framing)


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files of an archive, or of a folder that has an archive or the files in it."""
    archives = sorted(path.glob("cifar*.tar*")) if path.is_dir() else [path]
    if not archives:
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.suffix in (".bin", *IMAGE_SUFFIXES) and not file.name.startswith("."):
                yield file.relative_to(path).as_posix(), file.read_bytes()
        return
    with tarfile.open(archives[0], "r:*") as archive:
        for member in archive:
            if not member.isfile() or member.name.rsplit("/", 1)[-1].startswith("."):
                continue
            if member.size > _MAX_BYTES:
                raise DatasetError(f"{path}: {member.name} has {member.size} bytes; allowed: {_MAX_BYTES}")
            stream = archive.extractfile(member)
            yield member.name, stream.read() if stream is not None else b""


def _records(where: str, content: bytes) -> list[tuple[Image, int]]:
    if not content or len(content) % _RECORD:
        raise DatasetError(f"{where}: {len(content)} bytes; expected a multiple of {_RECORD}, a label and 32x32 pixels")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if rows[:, 0].max() >= len(LABELS):
        raise DatasetError(f"{where}: label {rows[:, 0].max()}; allowed: 0 to {len(LABELS) - 1}")
    pixels = rows[:, 1:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return list(zip(pixels, map(int, rows[:, 0]), strict=True))


def _decoded(where: str, content: bytes) -> Image:
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    except cv2.error:  # the header claims more pixels than OpenCV allows
        image = None
    if image is None or image.shape != (_SIDE, _SIDE, 3):
        found = "cannot be decoded" if image is None else f"is {image.shape[1]}x{image.shape[0]}"
        raise DatasetError(f"{where}: {found}; expected an image of 32x32")
    return np.asarray(image[..., ::-1], dtype=np.uint8)
