"""Rendered scenes as arrays, real road frames, and augmentation of batches."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
import torch
from fork_server import ForkServer

from multi_dnn_ros.training import datasets
from multi_dnn_ros.training.batches import ArrayBatches, augment_colours, augment_detection, augment_lanes
from multi_dnn_ros.training.data import map_classes
from multi_dnn_ros.training.datasets import (
    IGNORED,
    MAX_BOXES,
    NO_BOX,
    DatasetError,
    RenderSpec,
    SceneArrays,
    box_rows,
    fit_mask,
    framed,
    render,
    road_frames,
)
from multi_dnn_ros.training.scenes import Scene
from multi_dnn_ros.vision.preprocess import Preprocess

SPEC = RenderSpec(count=3, seed=6, detector_size=(96, 64), lane_size=(80, 48), wide=0.4)
ROAD = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "road"


def test_rendered_arrays_hold_the_scenes(tmp_path: Path) -> None:
    arrays = render(SPEC, tmp_path / "set", workers=1)
    assert len(arrays) == 3
    for k in range(3):
        scene = SPEC.scene(k)
        assert np.array_equal(arrays.detector_images[k], framed(scene.image, Preprocess(96, 64)))
        assert np.array_equal(arrays.lane_masks[k], fit_mask(scene.lane_mask, 80, 48))
        boxes, classes = box_rows(scene, Preprocess(96, 64))
        assert np.array_equal(arrays.boxes[k], boxes)
        assert np.array_equal(arrays.classes[k], classes)


def test_scenes_are_rendered_once_and_replaced_by_another_set(tmp_path: Path) -> None:
    render(SPEC, tmp_path, workers=1)
    stamp = (tmp_path / "boxes.npy").stat().st_mtime_ns
    render(SPEC, tmp_path, workers=1)
    assert (tmp_path / "boxes.npy").stat().st_mtime_ns == stamp
    assert len(render(RenderSpec(1, 7, (96, 64), (80, 48)), tmp_path, workers=1)) == 1


def test_boxes_and_masks_follow_letterboxed_scenes(tmp_path: Path) -> None:
    """640 x 480 in the upper left corner of 96 x 96: a scale of 0.15 in both directions, 24 rows of padding below."""
    spec = RenderSpec(1, 6, (96, 96), (96, 96), fit="letterbox", centered=False, pad=77)
    arrays, scene = render(spec, tmp_path, workers=1), spec.scene(0)
    for images in (arrays.detector_images, arrays.lane_images):
        assert np.array_equal(images[0, :, :72], framed(scene.image, Preprocess(96, 72)))
        assert (images[0, :, 72:] == 77).all()
    assert np.array_equal(arrays.lane_masks[0, :, :72], fit_mask(scene.lane_mask, 96, 72))
    assert not arrays.lane_masks[0, :, 72:].any()
    count = len(scene.boxes)
    assert np.allclose(arrays.boxes[0, :count], scene.boxes * 0.15)
    assert not arrays.boxes[0, count + len(scene.ignored) :].any()
    centred = box_rows(scene, Preprocess(96, 96, fit="letterbox"))[0]
    assert np.allclose(centred[:count], scene.boxes * 0.15 + (0, 12, 0, 12), atol=1e-4)


def test_stretched_scenes_of_earlier_versions_are_still_used(tmp_path: Path) -> None:
    """Their description has no framing options."""
    render(SPEC, tmp_path, workers=1)
    keys = {"count", "seed", "detector_size", "lane_size", "wide", "first"}
    assert set(json.loads((tmp_path / "spec.json").read_text())) == keys


def test_an_interrupted_rendering_is_no_data_set(tmp_path: Path) -> None:
    render(SPEC, tmp_path, workers=1)
    (tmp_path / "spec.json").unlink()
    with pytest.raises(DatasetError, match=str(tmp_path)):
        SceneArrays(tmp_path)


def test_a_second_process_waits_for_the_rendering_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rendering, proceed, calls = threading.Event(), threading.Event(), []
    warned, warn = threading.Event(), datasets.log.warning
    scene = RenderSpec.scene

    def slow(spec: RenderSpec, index: int) -> Scene:
        calls.append(index)
        rendering.set()
        assert proceed.wait(20)
        return scene(spec, index)

    monkeypatch.setattr(RenderSpec, "scene", slow)
    monkeypatch.setattr(datasets.log, "warning", lambda text, *given: (warn(text, *given), warned.set()))
    with ThreadPoolExecutor(2) as both:
        first = both.submit(render, SPEC, tmp_path / "set", 1)
        assert rendering.wait(20)
        second = both.submit(render, SPEC, tmp_path / "set", 1)
        assert warned.wait(20)
        assert calls == [0]
        proceed.set()
        assert np.array_equal(first.result().detector_images, second.result().detector_images)
    assert calls == [0, 1, 2]
    assert "waiting for it" in caplog.text


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, first: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: .*detector_images\.npy"):
        render(SPEC, tmp_path / "set", workers=1)
    assert not list((tmp_path / "set").iterdir())


class Killing(RenderSpec):
    """Its first scene kills the rendering process, like the out-of-memory killer."""

    def scene(self, index: int) -> Scene:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().scene(index)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("forked_spawns")
def test_a_rendering_process_that_is_killed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="set: one of 2 rendering processes was killed"):
        render(Killing(33, 6, (64, 64), (64, 64)), tmp_path / "set", workers=2)
    assert not list((tmp_path / "set").iterdir())


class KillingWhileOneWaits(RenderSpec):
    """Its first scene kills the process when another one waits forever and ignores SIGTERM."""

    def scene(self, index: int) -> Scene:
        ignoring = Path(os.environ["IGNORING"])
        if index:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ignoring.touch()
            threading.Event().wait()
        while not ignoring.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        return super().scene(index)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("forked_spawns")
def test_rendering_does_not_wait_for_processes_that_ignore_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like the rendering processes of a rank of the fleet."""
    monkeypatch.setenv("IGNORING", str(tmp_path / "ignoring"))
    with pytest.raises(DatasetError, match="set: one of 2 rendering processes was killed"):
        render(KillingWhileOneWaits(64, 6, (64, 64), (64, 64)), tmp_path / "set", workers=2)


class Waiting(RenderSpec):
    """Its scenes are never finished; each process that begins one creates a file named by its process id."""

    def scene(self, index: int) -> Scene:
        (Path(os.environ["BEGUN"]) / str(os.getpid())).touch()
        threading.Event().wait()
        return super().scene(index)


_RENDER = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_datasets import Waiting
from multi_dnn_ros.training.datasets import render
render(Waiting(64, 6, (64, 64), (64, 64)), Path({target!r}), workers=2)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_rendering_processes_end_with_their_parent(
    tmp_path: Path, fork_server: ForkServer, number: signal.Signals
) -> None:
    """SIGINT reaches all of them, as Ctrl-C does, and only the parent prints a traceback."""
    begun = tmp_path / "begun"
    begun.mkdir()
    program = _RENDER.format(folder=str(Path(__file__).parent), target=str(tmp_path / "set"))
    parent = fork_server.popen(
        [sys.executable, "-c", program], env={**os.environ, "BEGUN": str(begun)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    processes: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 120
        while len(processes) < 2:
            assert parent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
            processes = [psutil.Process(int(file.name)) for file in begun.iterdir()]
        for each in (*processes, parent) if number == signal.SIGINT else (parent,):
            each.send_signal(number)
        _, error = parent.communicate(timeout=60)
    finally:
        parent.kill()
        parent.wait()
    assert error.count("Traceback") == (number == signal.SIGINT)
    left = psutil.wait_procs(processes, timeout=30)[1]
    for process in left:
        process.kill()
    assert left == []


def test_damaged_scenes_are_rendered_again(tmp_path: Path) -> None:
    whole = render(SPEC, tmp_path, workers=1)
    boxes = np.array(whole.boxes)
    os.truncate(tmp_path / "boxes.npy", 200)
    assert np.array_equal(render(SPEC, tmp_path, workers=1).boxes, boxes)
    for name, damaged in (("spec.json", "{"), ("boxes.npy", "")):
        (tmp_path / name).write_text(damaged)
        assert np.array_equal(render(SPEC, tmp_path, workers=1).boxes, boxes)


def test_scenes_are_on_the_disk_before_their_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    fsync = os.fsync

    def recorded(file: int) -> None:
        assert not (tmp_path / "spec.json").exists()
        written.append(Path(f"/proc/self/fd/{file}").readlink().suffix)
        fsync(file)

    monkeypatch.setattr(os, "fsync", recorded)
    render(SPEC, tmp_path, workers=1)
    assert written == [".npy"] * len(SceneArrays.NAMES) + [".json"]


def test_boxes_are_scaled_to_the_input_and_rows_filled_up() -> None:
    scene = RenderSpec(1, 6, (96, 64), (80, 48)).scene(1)  # 640x480
    boxes, classes = box_rows(scene, Preprocess(64, 48))
    assert boxes.shape == (MAX_BOXES, 4)
    count = len(scene.boxes)
    assert np.allclose(boxes[:count], scene.boxes / 10)
    assert classes[:count].tolist() == scene.class_ids.tolist()
    assert (classes[count : count + len(scene.ignored)] == IGNORED).all()
    assert (classes[count + len(scene.ignored) :] == NO_BOX).all()


def test_wide_scenes_occur_in_the_given_share() -> None:
    spec = RenderSpec(100, 6, (96, 64), (80, 48), wide=0.3)
    heights = [(number * 2654435761 % 2**32) < 0.3 * 2**32 for number in range(1000)]
    assert 250 < sum(heights) < 350
    assert {spec.scene(k).image.shape[0] for k in range(8)} == {360, 480}


def test_a_network_sees_its_own_classes_only() -> None:
    classes = torch.tensor([[0, 1, 2, IGNORED, NO_BOX]])
    assert map_classes(classes, (0, 1, NO_BOX)).tolist() == [[0, 1, NO_BOX, IGNORED, NO_BOX]]
    assert map_classes(classes, (NO_BOX, NO_BOX, 0)).tolist() == [[NO_BOX, NO_BOX, 0, IGNORED, NO_BOX]]


def test_varied_boxes_stay_on_their_objects() -> None:
    image = torch.zeros(16, 3, 32, 64)
    image[:, :, 8:20, 40:60] = 1.0
    boxes = torch.tensor([40.0, 8.0, 60.0, 20.0]).repeat(16, 1, 1)
    batch = {"image": image, "boxes": boxes, "classes": torch.zeros(16, 1, dtype=torch.int64)}
    varied = augment_detection(batch, torch.Generator().manual_seed(0))
    lefts = set()
    for picture, box in zip(varied["image"], varied["boxes"][:, 0], strict=True):
        x1, y1, x2, y2 = (int(side) for side in box)
        lefts.add(x1)
        assert float(picture[:, y1:y2, x1:x2].mean()) > 0.5
        picture[:, y1:y2, x1:x2] = 0.0
        assert float(picture.max()) < 0.3
    assert lefts == {40, 4}  # some were mirrored


def test_varied_masks_stay_on_their_lines() -> None:
    image = torch.zeros(8, 3, 48, 80)
    mask = torch.zeros(8, 1, 48, 80, dtype=torch.uint8)
    image[..., 30:36], mask[..., 30:36] = 1.0, 255
    varied = augment_lanes({"image": image, "mask": mask}, torch.Generator().manual_seed(1))
    for picture, marked in zip(varied["image"], varied["mask"], strict=True):
        bright = picture.mean(dim=0) > 0.4
        assert float((bright == (marked[0] > 127)).float().mean()) > 0.98


def test_varied_colours_stay_in_range() -> None:
    varied = augment_colours(torch.rand(4, 3, 8, 8), torch.Generator().manual_seed(0), strength=3.0)
    assert float(varied.min()) >= 0.0
    assert float(varied.max()) <= 1.0


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        ArrayBatches({"image": torch.zeros(2, 3, 4, 4), "mask": torch.zeros(3, 1, 4, 4)}, 2, 0)


def test_repeats_decide_how_often_a_row_is_shown() -> None:
    image = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 2, 2)
    batches = ArrayBatches({"image": image}, 6, 0, repeats=torch.tensor([1, 1, 4]))
    (batch,) = batches.epoch(0)
    assert sorted((batch["image"][:, 0, 0, 0] * 255).round().tolist()) == [0, 1, 2, 2, 2, 2]


def road(folder: Path) -> None:
    """A video of ten frames and two photos, one of them the video's frame 1, with masks for frames 0, 4, 6."""
    (folder / "lane_masks").mkdir(parents=True)
    writer = cv2.VideoWriter(str(folder / "way.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 48))
    for k in range(10):
        writer.write(np.full((48, 64, 3), 20 * k, np.uint8))
    writer.release()
    cv2.imwrite(str(folder / "same.jpg"), np.full((48, 64, 3), 20, np.uint8))
    cv2.imwrite(str(folder / "other.jpg"), np.dstack([np.full((48, 64), c, np.uint8) for c in (250, 10, 120)]))
    for name in ("way_0000", "way_0004", "way_0006", "same", "other"):
        cv2.imwrite(str(folder / "lane_masks" / f"{name}.png"), np.eye(24, 32, dtype=np.uint8) * 255)


def test_road_frames_are_split_in_the_middle_of_the_video(tmp_path: Path) -> None:
    road(tmp_path)
    names = {
        part: [f.name for f in road_frames(tmp_path, part)] for part in ("train", "video", "photos", "other_photos")
    }
    assert names["train"] == ["way_0000", "way_0004"]
    assert names["video"] == ["way_0006"]
    assert names["photos"] == ["other", "same"]
    assert names["other_photos"] == ["other"]
    (other,) = road_frames(tmp_path, "other_photos")
    assert other.image.shape == (48, 64, 3)
    assert np.abs(other.image[0, 0].astype(int) - (120, 10, 250)).max() < 12  # RGB
    assert other.mask.shape == (24, 32)


def test_masks_belong_to_the_video_of_their_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The names of another video and of a photo begin with the name of the video."""
    road(tmp_path)
    shutil.copy(tmp_path / "way.mp4", tmp_path / "way_home.mp4")
    cv2.imwrite(str(tmp_path / "way_out.jpg"), np.full((48, 64, 3), 250, np.uint8))
    masks = {"way_0004": 0, "way_home_0004": 1, "way_home_0005": 2, "way_out": 3}
    for name, column in masks.items():
        mask = np.zeros((24, 32), np.uint8)
        mask[:, column] = 255
        cv2.imwrite(str(tmp_path / "lane_masks" / f"{name}.png"), mask)
    train = {frame.name: frame.mask for frame in road_frames(tmp_path, "train")}
    assert sorted(train) == ["way_0000", "way_0004", "way_0006"]
    assert train["way_0004"][0].nonzero()[0].tolist() == [0]
    last = {frame.name: frame.mask for frame in road_frames(tmp_path, "video")}
    assert sorted(last) == ["way_home_0004", "way_home_0005"]
    assert last["way_home_0004"][0].nonzero()[0].tolist() == [1]
    assert "way_out" in [frame.name for frame in road_frames(tmp_path, "photos")]
    assert not caplog.records

    shutil.copy(tmp_path / "lane_masks" / "way_0004.png", tmp_path / "lane_masks" / "way_0010.png")
    assert len(road_frames(tmp_path, "train")) == 3
    assert "way.mp4: 1 masks are not used, such as way_0010.png, because only 10 frames were read" in caplog.text


class LongVideo:
    """Replaces cv2.VideoCapture, with 40 frames; counts those that are still in memory."""

    def __init__(self, path: str) -> None:
        self.images: list[weakref.ref[np.ndarray]] = []

    def read(self) -> tuple[bool, np.ndarray | None]:
        assert sum(image() is not None for image in self.images) <= 2
        if len(self.images) == 40:
            return False, None
        image = np.full((48, 64, 3), 5 * len(self.images), np.uint8)
        self.images.append(weakref.ref(image))
        return True, image

    def release(self) -> None:
        pass


@pytest.mark.parametrize(
    ("part", "names"), [("train", ["way_0000", "way_0004", "way_0006"]), ("other_photos", ["other"])]
)
def test_frames_of_a_video_without_masks_are_not_kept(
    part: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand frames of 1920 x 1080 would take 12 GB."""
    road(tmp_path)
    monkeypatch.setattr(cv2, "VideoCapture", LongVideo)
    assert [frame.name for frame in road_frames(tmp_path, part)] == names


def test_missing_and_malformed_road_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no lane_masks/\*\.png"):
        road_frames(tmp_path, "train")
    with pytest.raises(ValueError, match="'test'"):
        road_frames(tmp_path, "test")
    road(tmp_path)
    (tmp_path / "other.jpg").write_bytes(b"no picture")
    with pytest.raises(DatasetError, match=r"other\.jpg: not a readable image"):
        road_frames(tmp_path, "photos")
    (tmp_path / "way.mp4").write_bytes(b"no video")
    with pytest.raises(DatasetError, match=r"way\.mp4: no frame"):
        road_frames(tmp_path, "train")


@pytest.mark.skipif(not ROAD.exists(), reason="needs ../shared/data/road")
def test_training_never_sees_the_second_half_of_the_real_video() -> None:
    trained = {int(frame.name[-4:]) for frame in road_frames(ROAD, "train")}
    held = {int(frame.name[-4:]) for frame in road_frames(ROAD, "video")}
    assert max(trained) < 110 <= min(held)
    assert (len(trained), len(held)) == (28, 28)


def test_the_shipped_lane_network_was_trained_on_the_first_half_only() -> None:
    from safetensors import safe_open

    import multi_dnn_ros

    path = Path(multi_dnn_ros.__file__).parent / "weights" / "lane.safetensors"
    with safe_open(path, "pt") as file:
        frames = json.loads(file.metadata()["training"])["data"]["road"]["frames"]
    assert frames
    assert max(int(name[-4:]) for name in frames) < 110
