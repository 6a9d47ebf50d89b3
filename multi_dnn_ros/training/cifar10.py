"""Reads CIFAR-10 (Krizhevsky 2009): its binary version, or images in class folders of a folder or an archive."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError
from multi_dnn_ros.training.samples import Item, Rows, Sample
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES
from multi_dnn_ros.vision.preprocess import Preprocess

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHAPE = (32, 32, 3)
#: Bytes of an image in the binary version: its label and its planes.
_RECORD = 1 + 32 * 32 * 3
_BATCHES = {**{f"data_batch_{k}.bin": "train" for k in range(1, 6)}, "test_batch.bin": "test"}


def load(path: Path, framing: Preprocess) -> dict[str, Rows]:
    """The parts `train` and `test` of the data at `path`, shuffled, because archives may be sorted by class. Raises
    DatasetError that says what is expected.
    """
    expected = f"expected {DATA_KINDS['cifar10'].layout}"
    found: dict[str, list[tuple[npt.NDArray[np.uint8], int]]] = {"train": [], "test": []}
    batches = set()
    try:
        for name, content in _files(path):
            *folders, stem = name.split("/")
            if stem in _BATCHES:
                batches.add(stem)
                records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)  # ValueError: of another length
                images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
                found[_BATCHES[stem]] += zip(images, records[:, 0].tolist(), strict=True)
            elif stem.endswith(IMAGE_SUFFIXES) and len(folders) >= 2 and folders[-2] in found:
                image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
                if image is None or image.shape != _SHAPE or folders[-1] not in LABELS:
                    raise ValueError(f"{name} is no image of 32x32 of one of the classes {', '.join(LABELS)}")
                found[folders[-2]].append((np.asarray(image[..., ::-1], np.uint8), LABELS.index(folders[-1])))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, ValueError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); {expected}") from None
    if batches and batches != _BATCHES.keys():
        raise DatasetError(f"{path}: {min(_BATCHES.keys() - batches)} is missing; {expected}")
    for part, images_of_part in found.items():
        labels = {label for _, label in images_of_part}
        if len(labels) < 2 or max(labels) >= len(LABELS):
            raise DatasetError(f"{path}: part {part} has images of the classes {sorted(labels)}; {expected}")
    rows = {}
    for part, images_of_part in found.items():
        order = np.random.default_rng(0).permutation(len(images_of_part))
        samples = [Sample(images_of_part[k][0], label=images_of_part[k][1]) for k in order]
        rows[part] = Rows([Item(f"image {k}", str(k), partial(_same, each)) for k, each in enumerate(samples)], framing)
    return rows


def _same(sample: Sample) -> Sample:
    return sample


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
