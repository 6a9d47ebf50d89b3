"""CIFAR-10 in all its formats, and the errors for damaged files."""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from multi_dnn_ros.training import cifar10
from multi_dnn_ros.training.data import DataRequest, Part, open_data
from multi_dnn_ros.training.samples import DatasetError
from multi_dnn_ros.vision.preprocess import Preprocess


def picture(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), 9, np.uint8))


def cifar_rows(count: int, seed: int) -> tuple[np.ndarray, list[int]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    return pixels, [(k + seed) % 10 for k in range(count)]


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        pixels, labels = cifar_rows(20, number)
        (folder / f"{name}.bin").write_bytes(np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1).tobytes())


def write_pictures(folder: Path) -> None:
    for number, part in enumerate(["train"] * 5 + ["test"]):
        pixels, labels = cifar_rows(20, number)
        for k, (row, label) in enumerate(zip(pixels, labels, strict=True)):
            path = folder / part / cifar10.LABELS[label] / f"{number}_{k:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), row.reshape(3, 32, 32).transpose(1, 2, 0)[..., ::-1])


def archived(folder: Path, path: Path, mode: str) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, folder.name)
    return path


@pytest.mark.parametrize("write", [write_binary, write_pictures])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_in_every_format(tmp_path: Path, write: Callable[[Path], None], packed: bool) -> None:
    folder = tmp_path / "cifar-10"
    write(folder)
    path = archived(folder, tmp_path / "cifar.tar.gz", "w:gz") if packed else folder
    found = cifar10.load(path, Preprocess(32, 32))
    for part, numbers in (("train", range(5)), ("test", [5])):
        rows = [found[part].read(k) for k in range(len(found[part]))]
        expected = {
            (label, row.tobytes())
            for number in numbers
            for row, label in zip(*cifar_rows(20, number), strict=True)
        }  # fmt: skip
        assert {(int(row["label"]), row["image"].numpy().tobytes()) for row in rows} == expected


def test_cifar10_parts_share_no_image_and_stay_the_same(tmp_path: Path) -> None:
    write_binary(tmp_path / "c")

    def images(part: Part) -> set[bytes]:
        rows = open_data(f"cifar10:{tmp_path / 'c'}", DataRequest(None, Preprocess(32, 32))).part(part)
        return {rows.read(k)["image"].numpy().tobytes() for k in range(len(rows))}

    train, validation, test = images("train"), images("choice"), images("test")
    assert [len(train), len(validation), len(test)] == [75, 25, 20]
    assert not train & validation
    assert not (train | validation) & test
    assert images("choice") == validation


def damage(name: str, content: bytes | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        write_binary(folder)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)

    return apply


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "no such file or folder"),
        (lambda folder: folder.mkdir(), "images of 0 classes"),
        (damage("data_batch_3.bin", None), "data_batch_3.bin is missing"),
        (damage("data_batch_3.bin", b"x" * 100), "data_batch_3.bin: 100 bytes; expected a multiple of 3073"),
        (damage("test_batch.bin", b""), "test_batch.bin: 0 bytes"),
        (damage("test_batch.bin", b"\x0a" + bytes(3072)), "label 10; allowed: 0 to 9"),
        (damage("test_batch.bin", b"\x02" + bytes(3072)), "images of 1 classes"),
        (lambda folder: folder.write_bytes(b"\x1f\x8b not gzip"), "cannot be read"),
        (lambda folder: picture(folder / "train" / "zebra" / "a.png", (32, 32)), "class zebra; expected airplane"),
        (lambda folder: picture(folder / "train" / "cat" / "a.png", (31, 32)), "a.png: is 31x32"),
    ],
)
def test_a_wrong_cifar10_is_named(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "c")
    with pytest.raises(DatasetError, match=message) as error:
        cifar10.load(tmp_path / "c", Preprocess(32, 32))
    assert str(tmp_path / "c") in str(error.value)


def damaged_gz(tar: bytes) -> bytes:
    """A gzip file whose second half is a block of an invalid type."""
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(tar[: len(tar) // 2]) + compressor.flush(zlib.Z_FULL_FLUSH) + b"\x07" * 100


def damaged_xz(tar: bytes) -> bytes:
    content = lzma.compress(tar, preset=0)
    return content[:20_000] + b"\xff" * 4096 + content[24_096:]


@pytest.mark.parametrize(("suffix", "damaged"), [("gz", damaged_gz), ("xz", damaged_xz)])
def test_a_damaged_archive_is_named(tmp_path: Path, suffix: str, damaged: Callable[[bytes], bytes]) -> None:
    """The archive is large enough for the damage to be noticed only while it is read."""
    pixels = np.random.default_rng(0).integers(0, 4, (300, 3073), dtype=np.uint8)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "data_batch_1.bin").write_bytes(pixels.tobytes())
    path = tmp_path / f"c.tar.{suffix}"
    path.write_bytes(damaged(archived(tmp_path / "c", tmp_path / "c.tar", "w").read_bytes()))
    with pytest.raises(DatasetError, match=rf"c\.tar\.{suffix}: cannot be read"):
        cifar10.load(path, Preprocess(32, 32))


def test_a_corrupt_jpeg_in_an_archive_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "c.tar", "w") as archive:
        entry = tarfile.TarInfo("train/cat/a.jpg")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"\xff\xd8\xff\x00"))
    with pytest.raises(DatasetError, match=r"c\.tar: train/cat/a\.jpg: cannot be decoded"):
        cifar10.load(tmp_path / "c.tar", Preprocess(32, 32))
