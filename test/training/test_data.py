"""Data sets by name: the content of each kind, and the errors for missing, empty or malformed sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from small_disk import small_disk
from torch.nn import functional as F

from multi_dnn_ros.training.batches import Batches, Inputs
from multi_dnn_ros.training.data import PARTS, Data, DataRequest, Task, check_data, open_data
from multi_dnn_ros.training.samples import CROWD, MAX_BOXES, NO_BOX, DatasetError, Rows, Sample, truth_of
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES
from multi_dnn_ros.vision.preprocess import Preprocess

SIZE = Preprocess(48, 32)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def opened(name: str, task: Task | None = None, labels: tuple[str, ...] = (), scenes: int = 4) -> Data:
    return open_data(name, DataRequest(task, SIZE, labels, scenes))


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (32, 32)) -> None:
    """Write an image of one RGB colour, losslessly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((size[1], size[0], 3), colour[::-1], np.uint8))


# --- folders of classes -----------------------------------------------------------------------------------------------


def class_folders(root: Path, parts: tuple[str, ...] = ("train", "val")) -> Path:
    for part in parts:
        for name, colour in (("green", (0, 200, 0)), ("red", (200, 0, 0))):
            for k in range(3):
                picture(root / part / name / f"{k}.png", colour, (20 + k, 30))
    return root


def test_folders_of_classes(tmp_path: Path) -> None:
    data = opened(f"classes:{class_folders(tmp_path)}")
    assert (data.task, data.labels) == ("classes", ("green", "red"))
    rows = data.part("train")
    assert [len(data.part(part)) for part in PARTS] == [5, 1, 6]
    row = rows.read(4)
    assert row["image"].shape == (3, 32, 48)
    assert row["image"][:, 5, 5].tolist() == [200, 0, 0]
    assert int(row["label"]) == 1
    assert rows.name(4).endswith("train/red/1.png")


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_every_suffix_of_images_is_read(suffix: str, tmp_path: Path) -> None:
    for name, level in (("dark", 20), ("light", 200)):
        for part in ("train", "val"):
            (folder := tmp_path / part / name).mkdir(parents=True)
            shape = (32, 32) if suffix == ".pgm" else (32, 32, 3)  # .pgm is grey only
            assert cv2.imwrite(str(folder / f"a{suffix}"), np.full(shape, level, np.uint8))
    row = opened(f"classes:{tmp_path}").part("test").read(1)
    assert row["image"][:, 5, 5].tolist() == pytest.approx([200] * 3, abs=2)


def test_a_test_folder_is_used_if_it_exists(tmp_path: Path) -> None:
    data = opened(f"classes:{class_folders(tmp_path, ('train', 'val', 'test'))}")
    (tmp_path / "test" / "red" / "0.png").unlink()
    assert [len(data.part(part)) for part in ("train", "choice", "test")] == [6, 6, 5]  # type: ignore[arg-type]


def one_class(root: Path) -> None:
    for part in ("train", "val"):
        picture(root / part / "red" / "a.png", (200, 0, 0))


def unknown_class(root: Path) -> None:
    class_folders(root)
    picture(root / "val" / "blue" / "a.png", (0, 0, 200))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, r"train: no such folder; expected DIR/train/<class>"),
        (lambda root: class_folders(root, ("train",)), "val: no such folder"),
        (one_class, "1 class folders; expected at least two"),
        (unknown_class, "folder blue is not a class of the training part"),
        (lambda root: [(root / part).mkdir(parents=True) for part in ("train", "val")], "0 class folders; expected"),
    ],
)
def test_a_wrong_folder_of_classes_is_named(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path)
    with pytest.raises(DatasetError, match=message):
        [opened(f"classes:{tmp_path}").part(part) for part in PARTS]


def test_a_corrupt_image_ends_the_reading_with_its_name(tmp_path: Path) -> None:
    class_folders(tmp_path)
    (tmp_path / "train" / "red" / "1.png").write_bytes(b"nothing")
    rows = opened(f"classes:{tmp_path}").part("train")
    batches = Batches([rows], "classes", Inputs(), 2, 0, torch.device("cpu"))
    with pytest.raises(DatasetError, match=r"red/1\.png: not a readable image"):
        list(batches.epoch(0))


@pytest.mark.parametrize("content", [b"", b"nothing", None])
def test_unreadable_images_are_left_out(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Empty, not an image, and cut off in the middle. More than one in a hundred is an error."""
    for number, name in enumerate(("a", "b")):
        for part in ("train", "val", "test"):
            for k in range(60):
                picture(tmp_path / part / name / f"{k}.png", (k, 9 * number, 0), (8, 8))
    data = opened(f"classes:{tmp_path}")
    bad = [tmp_path / "train" / "a" / f"{k}.png" for k in (7, 8)]
    bad[0].write_bytes(bad[0].read_bytes()[:60] if content is None else content)
    checked = check_data(data, progress=False)
    assert [len(checked.part(part)) for part in PARTS] == [119, 120, 120]
    assert f"part train (120 images): 1 unusable: {bad[0]}: not a readable image" in caplog.text
    bad[1].write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=r"2 unusable: .*7\.png.*8\.png.*; allowed: 1%"):
        check_data(data, progress=False)


def test_a_small_validation_part_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_data(opened(f"classes:{class_folders(tmp_path)}"), progress=False)
    assert "part validation (1 images): with fewer than 50 the best epoch may be selected by chance" in caplog.text


# --- COCO -------------------------------------------------------------------------------------------------------------


def coco(root: Path, **changes: Any) -> Path:
    """The second of the two training images is held out."""
    for part in ("train2017", "val2017"):
        for k, name in enumerate(("a.png", "b.png")):
            picture(root / part / name, (50 + k, 50, 50), (96, 64))
    second = {"id": 8, "file_name": "b.png", "width": 96, "height": 64}
    content = {
        "images": [{"id": 7, "file_name": "a.png", "width": 96, "height": 64}, second],
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


def test_coco(tmp_path: Path) -> None:
    rows = opened(f"coco:{coco(tmp_path)}", "boxes", ("person", "car")).part("train")
    row = rows.read(0)
    assert row["image"].shape == (3, 32, 48)
    assert row["boxes"][:3].tolist() == [[5, 10, 20, 15], [20, 5, 23, 15], [30, 5, 40, 15]]  # half the size
    assert row["classes"][:4].tolist() == [1, 0, CROWD - 0, NO_BOX]
    truth = truth_of(row["boxes"].numpy(), row["classes"].numpy())
    assert (truth.class_ids.tolist(), truth.boxes.tolist()) == ([1, 0], row["boxes"][:2].tolist())
    assert truth.crowd_ids is not None
    assert truth.ignored is not None
    assert (truth.crowd_ids.tolist(), truth.ignored.tolist()) == ([0], [[30, 5, 40, 15]])


def test_coco_boxes_follow_a_letterbox(tmp_path: Path) -> None:
    wanted = DataRequest("boxes", Preprocess(64, 64, fit="letterbox"), ("person", "car"))
    row = open_data(f"coco:{coco(tmp_path)}", wanted).part("test").read(0)
    scale, top = 64 / 96, (64 - round(64 * 64 / 96)) // 2
    expected = [10 * scale, 20 * 43 / 64 + top, 40 * scale, 30 * 43 / 64 + top]
    assert row["boxes"][0].tolist() == pytest.approx(expected, abs=1e-4)
    assert int(row["image"][0, 0, 0]) == 114  # the padding
    assert int(row["image"][0, 32, 32]) == 50


def test_boxes_that_do_not_fit_into_a_row_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    many = [{"id": k, "image_id": 7, "category_id": 3, "bbox": [1, 2, 3, 4]} for k in range(MAX_BOXES + 1)]
    rows = opened(f"coco:{coco(tmp_path, annotations=many)}", "boxes", ("car",)).part("test")
    assert "1 images have more than 96 boxes, whose further boxes are left out: a.png" in caplog.text
    assert int((rows.read(0)["classes"] == 0).sum()) == MAX_BOXES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 7, "file_name": "c.png", "width": 96, "height": 64}]}, r"c\.png: no such image \(1 of 1"),
        ({"images": [{"id": 7, "file_name": "../a.png", "width": 9, "height": 6}]}, "points outside"),
        ({"images": [{"id": 7, "file_name": "a.png", "width": 0, "height": 64}]}, "a.png is 0"),
        ({"images": [{"id": 7, "file_name": "a.png", "width": 96, "height": float("nan")}]}, "a.png is 96.0 x nan"),
        ({"images": 5}, "not COCO's detection format"),
        ({"images": [{"id": float("inf"), "file_name": "a.png", "width": 96, "height": 64}]}, "OverflowError"),
        ({"categories": [{"id": 3, "name": "boat"}]}, "KeyError: .annotation 2"),
        ({"annotations": [{"id": 1, "image_id": 9, "category_id": 3, "bbox": [1, 2, 3, 4]}]}, "annotation 1"),
        ({"annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2]}]}, "ValueError"),
    ],
)
def test_wrong_coco_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    coco(tmp_path, **changes)
    with pytest.raises(DatasetError, match=message):
        opened(f"coco:{tmp_path}", "boxes", ("person", "car")).part("train")


def test_an_image_or_mask_of_another_size_than_its_truth_is_named(tmp_path: Path) -> None:
    picture(coco(tmp_path) / "val2017" / "a.png", (50, 50, 50), (64, 64))
    with pytest.raises(DatasetError, match=r"a\.png: is 64x64, its annotations are for 96x64"):
        opened(f"coco:{tmp_path}", "boxes", ("car",)).part("test").read(0)
    picture(lane_folders(tmp_path / "lanes") / "val" / "images" / "a.png", (50, 50, 50), (64, 64))
    with pytest.raises(DatasetError, match=r"masks/a\.png: 48x32 does not have the aspect ratio of its image, 64x64"):
        opened(f"lanes:{tmp_path / 'lanes'}", "lanes").part("test").read(0)


def test_coco_of_other_classes_and_damaged_json(tmp_path: Path) -> None:
    coco(tmp_path)
    with pytest.raises(DatasetError, match="categories car, tree, person; the network's classes: boat"):
        opened(f"coco:{tmp_path}", "boxes", ("boat",)).part("train")
    (tmp_path / "annotations" / "instances_val2017.json").write_text("{")
    with pytest.raises(DatasetError, match=r"instances_val2017\.json: not JSON"):
        opened(f"coco:{tmp_path}", "boxes", ("car",)).part("test")
    with pytest.raises(DatasetError, match=r"no instances_train\*\.json"):
        opened(f"coco:{tmp_path / 'none'}", "boxes", ("car",)).part("train")


# --- lanes, roads -----------------------------------------------------------------------------------------------------


def lane_folders(root: Path) -> Path:
    """The second of the two training images is held out."""
    for part in ("train", "val"):
        mask = np.zeros((32, 48), np.uint8)
        mask[:, 12:14] = 1
        (root / part / "masks").mkdir(parents=True)
        for name in ("a", "b"):
            picture(root / part / "images" / f"{name}.png", (90, 90, 90), (96, 64))
            cv2.imwrite(str(root / part / "masks" / f"{name}.png"), mask)
    return root


def test_lane_images_with_masks(tmp_path: Path) -> None:
    row = opened(f"lanes:{lane_folders(tmp_path)}", "lanes").part("train").read(0)
    assert row["image"].shape == (3, 32, 48)
    assert row["mask"].shape == (1, 32, 48)
    assert row["mask"][0, 10].nonzero()[:, 0].tolist() == [12, 13]
    for name in ("a", "b"):
        (tmp_path / "train" / "masks" / f"{name}.png").rename(tmp_path / "train" / "masks" / f"{name}{name}.png")
    with pytest.raises(DatasetError, match="no image has a mask of its name"):
        opened(f"lanes:{tmp_path}", "lanes").part("train")


LETTERBOX = Preprocess(48, 48, fit="letterbox")


def test_lane_masks_follow_a_letterbox(tmp_path: Path) -> None:
    """Images of 96 x 64 occupy 32 of the 48 rows."""
    wanted = DataRequest("lanes", LETTERBOX)
    row = open_data(f"lanes:{lane_folders(tmp_path)}", wanted).part("train").read(0)
    assert row["image"][0, :, 5].tolist() == [114] * 8 + [90] * 32 + [114] * 8
    assert row["mask"][0, :, 12].tolist() == [0] * 8 + [255] * 32 + [0] * 8
    assert row["mask"][0, 20].nonzero()[:, 0].tolist() == [12, 13]


def test_masks_of_16_bits_may_hold_small_numbers(tmp_path: Path) -> None:
    """Lane numbers below 256 have a high byte of 0."""
    mask = np.zeros((32, 48), np.uint16)
    mask[:, 12:14], mask[:, 30] = 1, 300
    assert cv2.imwrite(str(lane_folders(tmp_path) / "train" / "masks" / "a.png"), mask)
    row = opened(f"lanes:{tmp_path}", "lanes").part("train").read(0)
    assert row["mask"][0, 10].nonzero()[:, 0].tolist() == [12, 13, 30]
    assert row["mask"].unique().tolist() == [0, 255]


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("imagenet:x", None, "kind 'imagenet'; allowed: cifar10, classes, coco"),
        ("cifar10", None, "a path is missing; expected cifar10:PATH"),
        ("cifar10:x", "boxes", "holds classes; the network is for boxes"),
        ("road:x", "classes", "holds boxes and lanes; the network is for classes"),
    ],
)
def test_a_wrong_name_is_named(name: str, task: Task | None, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        opened(name, task)


def yolo(root: Path, lines: str = "1 0.5 0.5 0.5 0.25\n0 0.1 0.1 0.1 0.1\n1 1.5 0.5 0.5 0.5\n") -> Path:
    """The second of the two training images is held out, and has no file of boxes."""
    for part in ("train", "val"):
        (root / "labels" / part).mkdir(parents=True)
        for k, name in enumerate("ab"):
            picture(root / "images" / part / f"{name}.png", (50 + k, 50, 50), (96, 64))
        (root / "labels" / part / "a.txt").write_text(lines)
    (root / "data.yaml").write_text("names: {0: tree, 1: car}\n")
    return root


def test_yolo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = opened(f"yolo:{yolo(tmp_path)}", "boxes", ("person", "car"))
    rows, test = data.part("train"), data.part("test")
    assert rows.read(0)["boxes"][0].tolist() == [12, 12, 36, 20]  # of 48x32
    assert rows.read(0)["classes"][:2].tolist() == [1, NO_BOX]
    assert "1 empty boxes, or boxes outside their image are left out: a.txt, line 3" in caplog.text
    assert len(test) == 2
    assert test.read(1)["classes"].unique().tolist() == [NO_BOX]


@pytest.mark.parametrize("line", ["1 0.5 0.5", "car 0.5 0.5 0.1 0.1", "2 0.5 0.5 0.1 0.1", "-1 0.5 0.5 0.1 0.1"])
def test_a_wrong_line_of_yolo_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(
        DatasetError, match=rf"a\.txt, line 1: '{line}'; expected `class x y width height`, class 0 to 1"
    ):
        opened(f"yolo:{yolo(tmp_path, line)}", "boxes", ("car",)).part("train")


def test_yolo_without_names_or_of_other_classes(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="classes tree, car; the network's classes: boat"):
        opened(f"yolo:{yolo(tmp_path)}", "boxes", ("boat",)).part("train")
    (tmp_path / "data.yaml").write_text("nc: 2\n")
    with pytest.raises(DatasetError, match=r"data\.yaml: no class names"):
        opened(f"yolo:{tmp_path}", "boxes", ("car",))


# --- batches ----------------------------------------------------------------------------------------------------------


class Many(Rows):
    """48 images of one colour, with the truth of one task."""

    framing = Preprocess(48, 32)

    def __init__(self, task: Task) -> None:
        self.task = task

    def __len__(self) -> int:
        return 48

    def name(self, index: int) -> str:
        return str(index)

    def sample(self, index: int) -> Sample:
        image = np.full((64, 96, 3), index, np.uint8)
        if self.task == "classes":
            return Sample(image, label=7)
        image[20:40, 10:30] = 255
        if self.task == "boxes":
            return Sample(image, boxes=np.array([[10, 20, 30, 40]], np.float32), classes=np.array([0]))
        mask = np.zeros((64, 96), np.uint8)
        mask[20:40, 10:30] = 1
        return Sample(image, mask=mask)


CPU = torch.device("cpu")


def test_small_sets_are_shown_more_often(tmp_path: Path) -> None:
    """With a set of 48 images and one of six, a fifth of the rows come from the small one."""
    small = opened(f"classes:{class_folders(tmp_path)}").part("test")
    batches = Batches([Many("classes"), small], "classes", Inputs(), 4, 0, CPU)
    labels = torch.cat([batch["label"] for batch in batches.epoch(0)])
    assert len(labels) == 60
    assert int((labels != 7).sum()) == 12


@pytest.mark.parametrize("task", ["classes", "boxes", "lanes"])
def test_batches_can_be_repeated_and_do_not_depend_on_their_division(task: Task) -> None:
    batches = Batches([Many(task)], task, Inputs((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), bgr=True), 20, 4, CPU)
    first, again, other = (list(batches.epoch(number)) for number in (0, 0, 1))
    parts = [list(batches.tenths(0, 0, *tenths)) for tenths in ((0, 3), (3, 10))]
    (late,) = batches.tenths(0, 1, 0, 10)
    for k, batch in enumerate(first):
        for name, value in batch.items():
            assert torch.equal(value, again[k][name])
            assert torch.equal(value, torch.cat([part[k][name] for part in parts]))
    assert torch.equal(first[1]["image"], late["image"])
    assert not torch.equal(first[0]["image"], other[0]["image"])


@pytest.mark.parametrize("task", ["boxes", "lanes"])
def test_the_truth_moves_with_the_image(task: Task) -> None:
    """A white square; its box or mask stays on it."""
    (batch,) = Batches([Many(task)], task, Inputs(), 48, 1, CPU).epoch(0)
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


def test_mixed_images_have_the_shares_of_their_classes(tmp_path: Path) -> None:
    small = opened(f"classes:{class_folders(tmp_path)}").part("train")
    batches = Batches([Many("classes"), small], "classes", Inputs(), 20, 0, CPU, mix=1.0, classes=8)
    for batch in batches.epoch(0):
        assert batch["label"].shape == (20, 8)
        torch.testing.assert_close(batch["label"].sum(1), torch.ones(20))


# --- the generated road -----------------------------------------------------------------------------------------------


def test_the_road_is_rendered_once_for_each_framing(tmp_path: Path) -> None:
    """And drawn in full size without being rendered."""
    found = []
    for framing in (Preprocess(48, 48), LETTERBOX, Preprocess(48, 48, antialias=False)):
        rows = open_data(f"road:{tmp_path}", DataRequest("lanes", framing, scenes=2)).part("test")
        assert rows.sample(1).image.shape == (480, 640, 3)
        assert len(list(tmp_path.glob("scenes_*"))) == len(found)
        found.append(rows.read(0)["image"])
    assert set(found[1][0, :5].unique().tolist()) == {114}
    assert not torch.equal(found[0], found[2])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes_*")}
    again = open_data(f"road:{tmp_path}", DataRequest("lanes", LETTERBOX, scenes=2)).part("test")
    assert torch.equal(again.read(0)["image"], found[1])
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes_*")}


def test_generated_road_for_both_tasks(tmp_path: Path) -> None:
    boxes = opened(f"road:{tmp_path}", "boxes", ("pedestrian",)).part("train")
    lanes = opened(f"road:{tmp_path}", "lanes").part("train")
    assert len(boxes) == len(lanes) == 4
    assert set(boxes.read(0)) == {"image", "boxes", "classes"}
    assert int(boxes.read(0)["classes"].max()) <= 0
    assert set(lanes.read(0)) == {"image", "mask"}
    with pytest.raises(DatasetError, match="shows car, truck, pedestrian; the network: boat"):
        opened(f"road:{tmp_path}", "boxes", ("boat",))


def test_damaged_or_interrupted_scenes_are_no_data(tmp_path: Path) -> None:
    with small_disk(10_000), pytest.raises(OSError, match="File too large"):
        opened(f"road:{tmp_path}", "lanes").part("test").read(0)
    assert not list(tmp_path.glob("*scenes_*.npy"))
    opened(f"road:{tmp_path}", "lanes").part("test").read(0)
    (file,) = tmp_path.glob("scenes_*.npy")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"damaged .*; remove it"):
        opened(f"road:{tmp_path}", "lanes").part("test").read(0)
