"""Reads CIFAR-10 (Krizhevsky 2009) from its binary or Python archive, or from JPEGs in a .tar.xz, without running
pickles.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.training.datasets import DatasetError

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_FILES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
_EXPECTED = (
    "expected cifar-10-batches-bin or cifar-10-batches-py (folder, or its .tar.gz), <part>/<class>/*.jpg in a folder "
    "or in a .tar, .tar.gz or .tar.xz"
)
#: Maximum size of a file in an archive: a batch has 31 MB.
_MAX_BYTES = 64 << 20
_MAX_IMAGES = 100_000

Arrays = tuple[torch.Tensor, torch.Tensor]
#: numpy's reconstruct function, which pickled arrays reference; its module differs between numpy versions.
_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]


def load(path: Path) -> dict[str, Arrays]:
    """`train` and `test`: images (N, 3, 32, 32) uint8 RGB and labels (N,) int64. Raises DatasetError that says what is
    expected.
    """
    if not path.exists():
        raise DatasetError(f"{path}: no such file or folder; {_EXPECTED}")
    try:
        files = dict(_archive(path) if path.is_file() else _folder(path))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); {_EXPECTED}") from None
    found = {part: _part(path, part, files) for part in _FILES}
    if not all(found.values()):
        raise DatasetError(f"{path}: no CIFAR-10 in it; {_EXPECTED}")
    return {part: _arrays(path, part, rows) for part, rows in found.items() if rows is not None}


def _folder(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    archives = sorted(path.glob("cifar*.tar*"))
    if archives:
        yield from _archive(archives[0])
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and _wanted(file.relative_to(path).as_posix()):
            yield file.relative_to(path).as_posix(), file.read_bytes


def _archive(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    with tarfile.open(path, "r:*") as archive:
        for number, member in enumerate(archive):
            if number > 2 * _MAX_IMAGES:
                raise DatasetError(f"{path}: more than {2 * _MAX_IMAGES} files")
            if not member.isfile() or not _wanted(member.name):
                continue
            if member.size > _MAX_BYTES:
                raise DatasetError(f"{path}: {member.name} has {member.size} bytes; allowed: {_MAX_BYTES}")
            stream = archive.extractfile(member)
            content = stream.read() if stream is not None else b""
            yield member.name, lambda content=content: content  # type: ignore[misc]


def _wanted(name: str) -> bool:
    stem = name.rsplit("/", 1)[-1]
    return stem.removesuffix(".bin") in (*_FILES["train"], *_FILES["test"]) or (
        stem.endswith((".jpg", ".jpeg", ".png")) and not stem.startswith(".")
    )


def _part(path: Path, part: str, files: dict[str, Callable[[], bytes]]) -> list[Any] | None:
    by_stem = {name.rsplit("/", 1)[-1]: read for name, read in files.items()}
    for suffix, decode in ((".bin", _binary), ("", _python)):
        if any(f"{name}{suffix}" in by_stem for name in _FILES[part]):
            missing = [name for name in _FILES[part] if f"{name}{suffix}" not in by_stem]
            if missing:
                raise DatasetError(f"{path}: {missing[0]}{suffix} is missing; {_EXPECTED}")
            return [row for name in _FILES[part]
                    for row in decode(f"{path}: {name}{suffix}", by_stem[f"{name}{suffix}"]())]  # fmt: skip
    rows = []
    for name, read in sorted(files.items()):
        folders = name.split("/")[:-1]
        if len(folders) >= 2 and folders[-2] == part:
            if folders[-1] not in LABELS:
                raise DatasetError(f"{path}: {name}: class {folders[-1]}; expected {', '.join(LABELS)}")
            rows.append((_jpeg(f"{path}: {name}", read()), LABELS.index(folders[-1])))
    return rows or None


def _jpeg(where: str, content: bytes) -> npt.NDArray[np.uint8]:
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    except cv2.error:  # the header claims more pixels than OpenCV allows
        image = None
    if image is None or image.shape != (_SIDE, _SIDE, 3):
        found = "cannot be decoded" if image is None else f"is {image.shape[1]}x{image.shape[0]}"
        raise DatasetError(f"{where}: {found}; expected an image of 32x32")
    return np.asarray(image[..., ::-1].transpose(2, 0, 1), dtype=np.uint8)


def _binary(where: str, content: bytes) -> list[tuple[npt.NDArray[np.uint8], int]]:
    if not content or len(content) % _RECORD:
        raise DatasetError(f"{where}: {len(content)} bytes; expected a multiple of {_RECORD}, a label and 32x32 pixels")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    return _rows(where, rows[:, 1:], rows[:, 0])


def _python(where: str, content: bytes) -> list[tuple[npt.NDArray[np.uint8], int]]:
    try:
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except UnpicklingError as error:
        raise DatasetError(f"{where}: refused: {error}; the binary version needs no pickle") from None
    except Exception as error:  # the unpickler raises arbitrary errors for damaged bytes
        raise DatasetError(f"{where}: not a batch of CIFAR-10 ({type(error).__name__}: {error})") from None
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _RECORD - 1:
        raise DatasetError(f"{where}: data is {pixels.dtype} {pixels.shape}; expected uint8 (N, {_RECORD - 1})")
    return _rows(where, pixels, labels)


class _OnlyArrays(Unpickler):
    """Unpickles lists, strings, numbers and plain numpy arrays; rejects any other name before looking it up."""

    _ALLOWED = frozenset(("_reconstruct", "ndarray", "dtype"))

    def find_class(self, module: str, name: str) -> Any:
        """The only point at which a pickle can reach code."""
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in self._ALLOWED:
            return _RECONSTRUCT if name == "_reconstruct" else getattr(np, name)
        raise UnpicklingError(f"it refers to {module}.{name}, which a data set does not need")


def _rows(
    where: str, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[Any]
) -> list[tuple[npt.NDArray[np.uint8], int]]:
    if len(labels) != len(pixels) or not len(labels) or min(labels) < 0 or max(labels) >= len(LABELS):
        raise DatasetError(f"{where}: labels do not fit; expected one of 0..{len(LABELS) - 1} for each image")
    return list(zip(pixels.reshape(-1, 3, _SIDE, _SIDE), map(int, labels), strict=True))


def _arrays(path: Path, part: str, rows: list[tuple[npt.NDArray[np.uint8], int]]) -> Arrays:
    labels = torch.tensor([label for _, label in rows])
    if len(labels.unique()) < 2:
        raise DatasetError(f"{path}: part {part} has images of one class only, {LABELS[int(labels[0])]}")
    return torch.from_numpy(np.stack([image for image, _ in rows])), labels
