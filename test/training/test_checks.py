"""Faulty images are named, counted and left out; too many of them are an error."""

from __future__ import annotations

import json
import logging
import shutil
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from multi_dnn_ros.training.checks import CheckedData, check_data, check_sets
from multi_dnn_ros.training.data import PARTS, DataRequest, open_data
from multi_dnn_ros.training.samples import DatasetError
from multi_dnn_ros.vision.preprocess import Preprocess

SIZE = Preprocess(32, 32)


def noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, each with 40, 10 and 10 different images for training, validation and test."""
    for k, (part, count) in enumerate((("train", 40), ("val", 10), ("test", 10))):
        for number, name in enumerate(("a", "b")):
            for image in range(count):
                noise(tmp_path / part / name / f"{image}.png", 1000 * k + 100 * number + image)
    return tmp_path


def checked(folder: Path, share: float = 0.05) -> CheckedData:
    data = open_data(f"classes:{folder}", DataRequest("classes", SIZE))
    return check_data(data, max_faulty=share, progress=False)


def counts(data: CheckedData) -> list[int]:
    return [len(data.part(part)) for part in PARTS]


def test_good_data_are_kept_completely(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = checked(folder, 0.0)
    assert counts(data) == [80, 20, 20]
    assert data.counts == {"train": 80, "choice": 20, "test": 20}
    assert [record.message for record in caplog.records] == [
        f"data 'classes:{folder}': 20 images to select the best epoch; with fewer than 50 it may be selected by chance"
    ]
    assert check_data(data) is data


def test_the_digest_depends_on_the_content_only(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy") / "elsewhere"
    shutil.copytree(folder, copy)
    before = checked(folder).digest
    assert checked(copy).digest == before
    noise(copy / "train" / "a" / "0.png", 77_777)
    assert checked(copy).digest != before


@pytest.mark.parametrize("content", [b"", b"nothing", None])
def test_unreadable_images_are_left_out(folder: Path, content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    """Empty, not an image, and cut off in the middle."""
    path = folder / "train" / "a" / "7.png"
    path.write_bytes(path.read_bytes()[:60] if content is None else content)
    caplog.set_level(logging.WARNING)
    data = checked(folder)
    assert counts(data) == [79, 20, 20]
    assert f"part train (80 images): 1 unusable: {path}: not a readable image" in caplog.text
    with pytest.raises(DatasetError, match=r"1 unusable: .*7\.png.* allowed share: 0\.01 \(--max-faulty\)"):
        checked(folder, 0.01)


def test_an_image_that_claims_too_many_pixels_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For such an image OpenCV raises an exception instead of returning None."""
    path = folder / "train" / "a" / "7.png"
    png = path.read_bytes()
    header = png[12:16] + struct.pack(">II", 60_000, 60_000) + png[24:29]
    path.write_bytes(png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:])
    assert counts(checked(folder)) == [79, 20, 20]
    assert f"1 unusable: {path}: not a readable image (pixels <=" in caplog.text


def test_images_in_two_parts_are_kept_in_the_later_one(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copy(folder / "test" / "b" / "3.png", folder / "train" / "a" / "copy.png")
    shutil.copy(folder / "val" / "b" / "3.png", folder / "train" / "b" / "copy.png")
    shutil.copy(folder / "train" / "b" / "3.png", folder / "train" / "b" / "twice.png")  # not in two parts
    data = checked(folder)
    assert counts(data) == [81, 20, 20]
    assert "part train (83 images): 2 duplicates of a later part, left out" in caplog.text
    assert f"a/copy.png is also {folder}/test/b/3.png of test" in caplog.text


def test_images_in_two_sets_are_kept_in_the_later_part(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the second set trains on a test image of the first set, and validates on one of its training images."""
    other = tmp_path_factory.mktemp("other")
    for k, part in enumerate(("train", "val", "test")):
        for number, name in enumerate(("a", "b")):
            for image in range(10):
                noise(other / part / name / f"{image}.png", 50_000 + 1000 * k + 100 * number + image)
    shutil.copy(folder / "test" / "b" / "3.png", other / "train" / "a" / "copy.png")
    shutil.copy(folder / "val" / "b" / "4.png", other / "train" / "b" / "copy.png")
    shutil.copy(folder / "train" / "a" / "5.png", other / "val" / "a" / "copy.png")
    sets = [open_data(f"classes:{path}", DataRequest("classes", SIZE)) for path in (folder, other)]
    first, second = check_sets(sets, max_faulty=0.5, progress=False)
    assert counts(first) == [79, 20, 20]
    assert [len(second.part(part)) for part in PARTS[:2]] == [20, 21]
    assert f"data 'classes:{other}', part train (22 images): 2 duplicates of a later part" in caplog.text
    assert f"a/copy.png is also {folder}/test/b/3.png of test of data 'classes:{folder}'" in caplog.text
    assert f"a/5.png is also {other}/val/a/copy.png of validation of data 'classes:{other}'" in caplog.text
    assert check_sets([first, second]) == [first, second]


def test_a_part_of_duplicates_only_is_an_error(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    shutil.copytree(folder / "test", folder / "val")
    with pytest.raises(DatasetError, match=r"part validation \(20 images\): 20 duplicates"):
        checked(folder)
    with pytest.raises(DatasetError, match=r"part validation \(20 images\): no usable image"):
        checked(folder, 1.0)


def test_masks_without_pair_or_of_another_shape_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part in ("train", "val"):
        (tmp_path / part / "masks").mkdir(parents=True)
        for k in range(40):
            noise(tmp_path / part / "images" / f"road{k}_0.png", 100 * len(part) + k)
            cv2.imwrite(str(tmp_path / part / "masks" / f"road{k}_0.png"), np.eye(16, dtype=np.uint8))
    cv2.imwrite(str(tmp_path / "val" / "masks" / "road3_0.png"), np.eye(8, 16, dtype=np.uint8))
    noise(tmp_path / "val" / "images" / "alone.png", 5)
    (tmp_path / "val" / "masks" / "road4_0.png").rename(tmp_path / "val" / "masks" / "none.png")
    data = check_data(open_data(f"lanes:{tmp_path}", DataRequest("lanes", SIZE)), max_faulty=0.2, progress=False)
    assert len(data.part("test")) == 38
    assert "4 unusable: " in caplog.text
    for text in ("alone.png: no mask of this name", "none.png: no image of this name", "and 1 more"):
        assert text in caplog.text


def test_the_digest_includes_the_truth(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    digests = set()
    for width in (9, 10, 9):
        for k, part in enumerate(("train", "val")):
            for image in range(8):
                noise(tmp_path / part / f"{image}.png", 100 * k + image)
            content = {
                "images": [{"id": image, "file_name": f"{image}.png", "width": 32, "height": 32} for image in range(8)],
                "categories": [{"id": 1, "name": "car"}],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 2, width, 9]}],
            }
            (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
        data = open_data(f"coco:{tmp_path}", DataRequest("boxes", SIZE, ("car",)))
        digests.add(check_data(data, progress=False).digest)
    assert len(digests) == 2


def test_an_image_of_another_size_than_its_annotations_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "annotations").mkdir()
    for part in ("train", "val"):
        for k in range(8):
            noise(tmp_path / part / f"{k}.png", 100 * len(part) + k)
        content = {
            "images": [{"id": k, "file_name": f"{k}.png", "width": 32, "height": 32} for k in range(8)],
            "categories": [{"id": 1, "name": "car"}],
            "annotations": [{"id": k, "image_id": k, "category_id": 1, "bbox": [2, 2, 9, 9]} for k in range(8)],
        }
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    resized = tmp_path / "train" / "2.png"  # 3 and 7 are held out
    assert cv2.imwrite(str(resized), np.zeros((16, 64, 3), np.uint8))
    data = open_data(f"coco:{tmp_path}", DataRequest("boxes", SIZE, ("car",)))
    assert counts(check_data(data, max_faulty=0.5, progress=False)) == [5, 2, 8]
    assert f"{resized}: is 64x16, its annotations are for 32x32" in caplog.text
    with pytest.raises(DatasetError, match=r"1 unusable: .*2\.png: is 64x16"):
        check_data(data, max_faulty=0.1, progress=False)


def test_boxes_outside_of_their_image_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "annotations").mkdir()
    for part in ("train", "val"):
        for k in range(8):
            noise(tmp_path / part / f"{k}.png", 100 * len(part) + k)
        boxes = [[2, 2, 9, 9], [40, 2, 9, 9], [2, 2, 0, 9], [2, 2, float("nan"), 9]]
        content = {
            "images": [{"id": k, "file_name": f"{k}.png", "width": 32, "height": 32} for k in range(8)],
            "categories": [{"id": 1, "name": "car"}],
            "annotations": [{"id": k, "image_id": 1, "category_id": 1, "bbox": box} for k, box in enumerate(boxes)],
        }
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    data = open_data(f"coco:{tmp_path}", DataRequest("boxes", SIZE, ("car",)))
    check_data(data, max_faulty=0.5, progress=False)
    assert "annotation 1: box [40.0, 2.0, 9.0, 9.0] is empty or outside the image" in caplog.text
    with pytest.raises(DatasetError, match="3 unusable: annotation 1"):
        check_data(data, max_faulty=0.1, progress=False)
