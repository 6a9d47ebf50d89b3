"""Reads the binary version of CIFAR-10 (Krizhevsky 2009)."""

from __future__ import annotations

import tarfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError
from multi_dnn_ros.training.samples import Item, Rows, Sample
from multi_dnn_ros.vision.preprocess import Preprocess

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: Bytes of an image: its label and its planes.
_RECORD = 1 + 3 * 32 * 32
_FILES = {"train": [f"data_batch_{k}.bin" for k in range(1, 6)], "test": ["test_batch.bin"]}


def load(path: Path, framing: Preprocess) -> dict[str, Rows]:
    """The parts `train` and `test` of the archive, or of the folder with its files. Raises DatasetError that says what
    is expected.
    """
    try:
        files = {file.name: file.read_bytes() for file in path.rglob("*_batch*.bin")} if path.is_dir() else _of(path)
        return {part: _rows([files[name] for name in names], framing) for part, names in _FILES.items()}
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError) as error:
        expected = DATA_KINDS["cifar10"].layout
        raise DatasetError(f"{path}: cannot be read ({type(error).__name__}: {error}); expected {expected}") from None


def _of(archive: Path) -> dict[str, bytes]:
    """Contents of the files of an archive by name."""
    with tarfile.open(archive, "r:*") as opened:
        streams = ((member.name, opened.extractfile(member)) for member in opened if member.name.endswith(".bin"))
        return {name.rpartition("/")[2]: stream.read() for name, stream in streams if stream is not None}


def _rows(batches: list[bytes], framing: Preprocess) -> Rows:
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, _RECORD)  # ValueError: of another length
    labels = records[:, 0].tolist()
    if not labels or max(labels) >= len(LABELS):
        raise ValueError(f"{len(labels)} images with labels up to {max(labels, default=0)}")
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    samples = [Sample(image, label=label) for image, label in zip(images, labels, strict=True)]
    return Rows([Item(f"image {k}", str(k), partial(_same, sample)) for k, sample in enumerate(samples)], framing)


def _same(sample: Sample) -> Sample:
    return sample
