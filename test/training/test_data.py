"""Data sets by name: the content of each kind, their parts, their batches, and the errors for malformed sets."""

from __future__ import annotations

import gzip
import itertools
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_disk import small_disk
from torch.nn import functional as F

from multi_dnn_ros.training.data import MAX_SHARE, PARTS, Batches, Data, Task, open_data, split
from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import CROWD, NO_BOX, Item, Rows, Sample
from multi_dnn_ros.vision.preprocess import Preprocess

SIZE, LETTERBOX = Preprocess(48, 32), Preprocess(48, 48, fit="letterbox")


def opened(
    name: str, task: Task | None = None, labels: tuple[str, ...] = (), scenes: int = 4, framing: Preprocess = SIZE
) -> Data:
    return open_data(name, task, framing, labels, scenes)


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (96, 64)) -> None:
    """Write an image of one RGB colour, losslessly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), colour[::-1], np.uint8))


def class_folders(root: Path, parts: tuple[str, ...] = ("train", "val")) -> Path:
    for part, (name, colour) in itertools.product(parts, (("green", (0, 200, 0)), ("red", (200, 0, 0)))):
        for k in range(8):
            picture(root / part / name / f"{name}_{k}.png", colour, (20 + k, 30))
    return root


def coco(root: Path, **changes: Any) -> Path:
    """The second of the two training images is held out."""
    for part, name in itertools.product(("train2017", "val2017"), ("a.png", "b.png")):
        picture(root / part / name, (50, 50, 50))
    content = {
        "images": [{"id": 7 + k, "file_name": f"{name}.png", "width": 96, "height": 64} for k, name in enumerate("ab")],
        "categories": [{"id": 3, "name": "car"}, {"id": 9, "name": "tree"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 10]},
            {"id": 2, "image_id": 7, "category_id": 9, "bbox": [0, 0, 5, 5]},
            {"id": 3, "image_id": 7, "category_id": 1, "bbox": [40, 10, 6, 20]},
            {"id": 4, "image_id": 7, "category_id": 1, "bbox": [60, 10, 20, 20], "iscrowd": 1},
            {"id": 5, "image_id": 7, "category_id": 3, "bbox": [60, 10, 0, 20]},
        ],
        **changes,
    }
    (root / "annotations").mkdir(exist_ok=True)
    for part in ("train", "val"):
        (root / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(content))
    return root


def yolo(root: Path, lines: str = "1 0.5 0.5 0.5 0.25\n0 0.1 0.1 0.1 0.1\n1 1.5 0.5 0.5 0.5\n") -> Path:
    """The second of the two training images is held out, and has no file of boxes."""
    for part in ("train", "val"):
        (root / "labels" / part).mkdir(parents=True)
        for name in "ab":
            picture(root / "images" / part / f"{name}.png", (50, 50, 50))
        (root / "labels" / part / "a.txt").write_text(lines)
    (root / "data.yaml").write_text("names: {0: tree, 1: car}\n")
    return root


def lane_folders(root: Path) -> Path:
    """Masks of 16 bits with small numbers; the second of the two training images is held out."""
    mask = np.zeros((32, 48), np.uint16)
    mask[:, 12:14], mask[:, 30] = 1, 300
    for part, name in itertools.product(("train", "val"), "ab"):
        (root / part / "masks").mkdir(parents=True, exist_ok=True)
        picture(root / part / "images" / f"{name}.png", (90, 90, 90))
        assert cv2.imwrite(str(root / part / "masks" / f"{name}.png"), mask)
    return root


def cifar10(folder: Path, **changed: bytes | None) -> Path:
    """20 images in each of the six batches. changed: other contents of a batch, or None for no file."""
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 3072), dtype=np.uint8)
        content = np.concatenate([np.arange(20, dtype=np.uint8)[:, None] % 10, pixels], axis=1).tobytes()
        if (written := changed.get(name, content)) is not None:
            (folder / f"{name}.bin").write_bytes(written)
    return folder


def test_folders_of_classes(tmp_path: Path) -> None:
    data = opened(f"classes:{class_folders(tmp_path)}")
    assert data.labels == ("green", "red")
    assert [len(data.part(part)) for part in PARTS] == [12, 4, 16]
    for part in PARTS:
        assert {int(row["label"]) for row in map(data.part(part).__getitem__, range(4))} == {0, 1} or part != "choice"
    row = data.part("test")[9]
    assert (row["image"].shape, row["image"][:, 5, 5].tolist(), int(row["label"])) == ((3, 32, 48), [200, 0, 0], 1)
    class_folders(tmp_path, ("test",))
    assert [len(opened(f"classes:{tmp_path}").part(part)) for part in PARTS] == [16, 16, 16]


def test_coco(tmp_path: Path) -> None:
    name = f"coco:{coco(tmp_path)}"
    row = opened(name, "boxes", ("person", "car")).part("train")[0]
    assert row["boxes"][:3].tolist() == [[5, 10, 20, 15], [20, 5, 23, 15], [30, 5, 40, 15]]  # half the size
    assert row["classes"][:4].tolist() == [1, 0, CROWD - 0, NO_BOX]
    row = opened(name, "boxes", ("car",), framing=LETTERBOX).part("test")[0]
    assert row["boxes"][0].tolist() == [5, 18, 20, 23]  # eight rows of padding above
    assert (int(row["image"][0, 0, 0]), int(row["image"][0, 24, 24])) == (114, 50)


def test_yolo(tmp_path: Path) -> None:
    data = opened(f"yolo:{yolo(tmp_path)}", "boxes", ("person", "car"))
    assert data.part("train")[0]["boxes"][0].tolist() == [12, 12, 36, 20]  # of 48x32
    assert data.part("train")[0]["classes"][:2].tolist() == [1, NO_BOX]
    assert data.part("test")[1]["classes"].unique().tolist() == [NO_BOX]


def test_lane_images_with_masks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = f"lanes:{lane_folders(tmp_path)}"
    assert opened(name, "lanes").part("train")[0]["mask"][0, 10].nonzero()[:, 0].tolist() == [12, 13, 30]
    row = opened(name, "lanes", framing=LETTERBOX).part("test")[0]
    assert row["image"][0, :, 5].tolist() == [114] * 8 + [90] * 32 + [114] * 8
    assert row["mask"][0, :, 12].tolist() == [0] * 8 + [255] * 32 + [0] * 8
    (tmp_path / "val" / "masks" / "b.png").unlink()
    assert len(opened(name, "lanes").part("test")) == 1
    assert "b.png" in caplog.text


def test_cifar10(tmp_path: Path) -> None:
    folder = cifar10(tmp_path / "c")
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(folder, "cifar-10")
    pixels = np.random.default_rng(5).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    for path in (folder, tmp_path / "cifar.tar.gz"):
        data = opened(f"cifar10:{path}", framing=Preprocess(32, 32))
        assert ([len(data.part(part)) for part in PARTS], data.labels[3]) == ([75, 25, 20], "cat")
        rows = data.part("test")
        assert all(torch.equal(rows[k]["image"], torch.from_numpy(pixels[k])) for k in range(20))
        assert [int(rows[k]["label"]) for k in range(20)] == [k % 10 for k in range(20)]


# --- errors -----------------------------------------------------------------------------------------------------------


def replaced(make: Callable[[Path], Path], file: str) -> Callable[[Path], None]:
    """A set with an image of another size, or a new image."""
    return lambda root: picture(make(root) / file, (50, 50, 50), (64, 64))


def damaged_image(root: Path) -> Path:
    (class_folders(root) / "val" / "red" / "red_1.png").write_bytes(b"nothing")
    return root


IMAGE = {"id": 7, "file_name": "a.png", "width": 96, "height": 64}


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("imagenet:.", lambda root: root, "kind 'imagenet'; allowed: cifar10, classes, coco"),
        ("cifar10", lambda root: root, "a path is missing; expected cifar10:PATH"),
        ("classes:no", lambda root: root, "no: no such file or folder"),
        ("classes:boxes", lambda root: (root / "boxes").mkdir(), "holds classes; the network is for boxes"),
        ("road:", lambda root: root, "shows car, truck, pedestrian; the network: boat"),
        ("cifar10:c", lambda root: cifar10(root / "c", data_batch_3=None), "KeyError: 'data_batch_3.bin'"),
        ("cifar10:c", lambda root: cifar10(root / "c", data_batch_3=b"x" * 100), "c: cannot be read .*ValueError"),
        ("cifar10:c", lambda root: cifar10(root / "c", test_batch=b"\x0a" + bytes(3072)), "label 10"),
        ("cifar10:c", lambda root: (root / "c").write_bytes(gzip.compress(bytes(9000))[:-9]), "Error: "),
        ("classes:.", lambda root: root, r"train: no such folder; expected DIR/train/<class>"),
        ("classes:.", lambda root: [(root / part).mkdir() for part in ("train", "val")], "0 class folders; expected"),
        ("classes:.", replaced(class_folders, "val/blue/a.png"), "folder blue is not a class of the training part"),
        ("classes:.", damaged_image, r"red/red_1\.png: not a readable image"),
        ("coco:.", replaced(coco, "val2017/a.png"), r"a\.png: is 64x64, its annotations are for 96x64"),
        ("coco:.", lambda root: coco(root, images=[{**IMAGE, "file_name": "c.png"}]), r"c\.png: no such image \(1 "),
        ("coco:.", lambda root: coco(root, images=[{**IMAGE, "height": float("nan")}]), "not COCO's detection format"),
        ("coco:.", lambda root: coco(root, categories=[{"id": 3, "name": "sea"}]), "not COCO.*KeyError: 9"),
        ("coco:.", coco, "classes car, tree, person; the network's classes: boat"),
        ("coco:.", lambda root: root, r"no instances_train\*\.json"),
        ("yolo:.", yolo, "classes tree, car; the network's classes: boat"),
        ("yolo:.", lambda root: (yolo(root) / "data.yaml").write_text("nc: 2\n"), r"data\.yaml: no class names"),
        ("yolo:.", lambda root: yolo(root, "1 0.5 0.5"), r"a\.txt, line 1: '1 0\.5 0\.5'; expected `class x y width"),
        ("yolo:.", lambda root: yolo(root, "2 0.5 0.5 0.1 0.1"), "line 1: '2 .*, class 0 to 1"),
        ("lanes:.", lambda root: class_folders(root), "images: No such file or directory"),
        ("lanes:.", replaced(lane_folders, "val/images/a.png"), r"48x32 does not have the aspect ratio .*, 64x64"),
    ],
)
def test_wrong_data_is_named(
    name: str, make: Callable[[Path], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    task: Task | None = "boxes" if name.startswith(("coco", "yolo", "road")) or "boxes" in name else None
    labels = ("boat",) if "boat" in message else ("person", "car")
    with pytest.raises(DatasetError, match=message):
        [[item.load() for item in opened(name, task, labels).part(part).items] for part in PARTS]


# --- parts ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([1, 1, 2, 30, 400]) | st.integers(1, 60), min_size=1, max_size=60))
def test_training_and_validation_share_no_recording_if_they_are_many(lengths: list[int]) -> None:
    recordings = [f"drive{k}" for k, length in enumerate(lengths) for _ in range(length)]
    count = len(recordings)
    if count < 2:
        return
    train, validation = split(recordings)
    assert sorted([*train, *validation]) == list(range(count))
    assert 1 <= len(validation) <= max(1, count * MAX_SHARE)
    shared = {recordings[k] for k in train} & {recordings[k] for k in validation}
    assert len(shared) <= (validation == list(range(count - len(validation), count)))


# --- batches ----------------------------------------------------------------------------------------------------------


def many(task: Task) -> Rows:
    """48 images of one colour with a white square, with the truth of one task."""

    def sample(index: int) -> Sample:
        image, mask = np.full((64, 96, 3), index, np.uint8), np.zeros((64, 96), np.uint8)
        image[20:40, 10:30], mask[20:40, 10:30] = 255, 1
        if task == "classes":
            return Sample(image, label=index % 8)
        if task == "boxes":
            return Sample(image, boxes=np.array([[10, 20, 30, 40]], np.float32), classes=np.array([0]))
        return Sample(image, mask=mask)

    return Rows([Item(str(k), str(k), partial(sample, k)) for k in range(48)], Preprocess(48, 32))


def batches_of(rows: list[Rows], task: Task, size: int = 40) -> Batches:
    return Batches(rows, task, lambda image: image, size, 4, torch.device("cpu"))


@pytest.mark.parametrize("task", ["classes", "boxes", "lanes"])
def test_batches_can_be_repeated_from_any_of_them(task: Task) -> None:
    batches = batches_of([many(task)] * 2, task)
    first, again, other = (list(batches.epoch(number)) for number in (0, 0, 1))
    (late,) = batches.epoch(0, 1)
    assert [len(batch["image"]) for batch in first] == [40, 40]
    for name, value in first[1].items():
        assert torch.equal(value, again[1][name])
        assert torch.equal(value, late[name])
    assert not torch.equal(first[0]["image"], other[0]["image"])


@pytest.mark.parametrize("task", ["boxes", "lanes"])
def test_the_truth_moves_with_the_image(task: Task) -> None:
    (batch,) = batches_of([many(task)], task, 48).epoch(0)
    moved = set()
    for k in range(48):
        bright = batch["image"][k].amin(0) > 0.6
        if task == "lanes":
            marked = batch["mask"][k, 0] > 127
            moved.add(tuple(marked.nonzero().float().mean(0).tolist()))
            inside = F.max_pool2d(marked[None, None].float(), 3, 1, 1)[0, 0] > 0
        else:
            x1, y1, x2, y2 = batch["boxes"][k, 0].round().int().tolist()
            moved.add((x1, y1))
            inside = torch.zeros_like(bright)
            inside[y1 - 1 : y2 + 1, max(x1 - 1, 0) : x2 + 1] = True
        assert not (bright & ~inside).any() or float(batch["image"][k].mean()) > 0.5
    assert len(moved) >= 2


def test_a_damaged_image_ends_an_epoch_with_its_name(tmp_path: Path) -> None:
    rows = opened(f"classes:{damaged_image(tmp_path)}").part("test")
    with pytest.raises(DatasetError, match=r"red/red_1\.png: not a readable image"):
        list(batches_of([rows], "classes", 4).epoch(0))


# --- the generated road -----------------------------------------------------------------------------------------------


def test_the_road_is_rendered_once_for_each_framing(tmp_path: Path) -> None:
    """And drawn in full size without being rendered."""
    found = []
    for framing in (Preprocess(48, 48), LETTERBOX):
        rows = opened(f"road:{tmp_path}", "lanes", scenes=2, framing=framing).part("test")
        assert rows.items[1].load().image.shape == (480, 640, 3)
        assert len(list(tmp_path.glob("scenes_*"))) == len(found)
        found.append(rows[0]["image"])
    assert set(found[1][0, :5].unique().tolist()) == {114}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes_*")}
    again = opened(f"road:{tmp_path}", "lanes", scenes=2, framing=LETTERBOX).part("test")
    assert torch.equal(again[0]["image"], found[1])
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes_*")}
    boxes = opened(f"road:{tmp_path}", "boxes", ("pedestrian",), scenes=2).part("train")
    assert (len(boxes), set(boxes[0])) == (2, {"image", "boxes", "classes"})
    assert int(boxes[0]["classes"].max()) <= 0


def test_damaged_or_interrupted_scenes_are_no_data(tmp_path: Path) -> None:
    with small_disk(10_000), pytest.raises(DatasetError, match="cannot be written"):
        opened(f"road:{tmp_path}", "lanes").part("test")[0]
    assert not list(tmp_path.glob("*scenes_*.pt"))
    opened(f"road:{tmp_path}", "lanes").part("test")[0]
    (file,) = tmp_path.glob("scenes_*.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"damaged .*; remove it"):
        opened(f"road:{tmp_path}", "lanes").part("test")[0]
