"""Training data: generated scenes rendered once into arrays, and real road frames with lane masks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.training.scenes import Scene, SceneGenerator
from multi_dnn_ros.vision.preprocess import Preprocess, ResizeMode

log = logging.getLogger(__name__)

#: Maximum number of boxes per image, ignored ones included; a scene has fewer than half of that.
MAX_BOXES = 96
#: A photo whose mean difference from a video frame (grey levels at 240x135) is at most this was taken from the video.
#: Consecutive frames of the available video differ by 3, photos of other roads by 18 or more.
SAME_ROAD = 6.0
#: Maximum number of frames read from a video. Those with masks are kept in memory.
MAX_FRAMES = 2_000
#: Class numbers of padding rows, of ignored boxes, and of crowds, which are ignored, too: CROWD - k is one of class k.
NO_BOX, IGNORED, CROWD = -1, -2, -3


class DatasetError(ValueError):
    """A data set is missing, empty or malformed; the message names the file or folder."""


@dataclass(frozen=True)
class RenderSpec:
    """Which scenes, and the network input sizes (width, height) to store them for.

    wide: share of the scenes rendered at 640x360 instead of 640x480. fit, antialias, centered: how they become inputs,
    as in Preprocess; pad: grey level of the padding, 0..255.
    """

    count: int
    seed: int
    detector_size: tuple[int, int]
    lane_size: tuple[int, int]
    wide: float = 0.0
    first: int = 0
    fit: ResizeMode = "stretch"
    antialias: bool = True
    centered: bool = True
    pad: int = 114

    @property
    def description(self) -> dict[str, Any]:
        """As JSON values. Without framing options that have their defaults: scenes stored before there were any have
        none.
        """
        given = {name: value for name, value in asdict(self).items() if name not in FRAMING or value != FRAMING[name]}
        content: dict[str, Any] = json.loads(json.dumps(given))
        return content

    def framing(self, size: tuple[int, int]) -> Preprocess:
        """How a scene becomes an input of `size` (width, height)."""
        return Preprocess(
            *size, fit=self.fit, antialias=self.antialias, centered=self.centered, pad=self.pad / 255
        )  # fmt: skip

    def scene(self, index: int) -> Scene:
        """Scene number `index` of this set, 0 .. count - 1."""
        number = self.first + index
        height = 360 if (number * 2654435761 % 2**32) < self.wide * 2**32 else 480
        return SceneGenerator(640, height, self.seed).scene(number)


#: Options of RenderSpec that say how scenes become inputs, with their defaults.
FRAMING: dict[str, Any] = {
    field.name: field.default for field in fields(RenderSpec) if field.name in ("fit", "antialias", "centered", "pad")
}


def framing_options(framing: Preprocess) -> dict[str, Any]:
    """The options of RenderSpec for a framing: those that differ from their defaults and change something."""
    options: dict[str, Any] = {"fit": framing.fit, "antialias": framing.antialias}
    if framing.fit == "letterbox":
        options |= {"centered": framing.centered, "pad": round((framing.pad or 0.0) * 255)}
    return {name: value for name, value in options.items() if value != FRAMING[name]}


def framed(image: npt.NDArray[np.uint8], framing: Preprocess) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 -> (3, height, width) uint8, resized exactly as the node does before the network.

    framing: without mean and std, RGB.
    """
    (values,) = framing(torch.from_numpy(np.array(image)))
    return np.asarray(values[0].mul_(255.0).round_().to(torch.uint8).numpy(), dtype=np.uint8)


def fit_mask(mask: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[np.uint8]:
    """(H, W), nonzero = lane -> (1, height, width) uint8, 0..255 = share of the pixel that is lane."""
    area = cv2.resize((mask > 0).astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(np.rint(area * 255), dtype=np.uint8)[None]


def framed_mask(mask: npt.NDArray[Any], framing: Preprocess, image_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """`fit_mask` at the place that an image of (H, W) has in the input; the padding is not lane."""
    place = framing.geometry(image_size)
    padded = np.zeros((1, framing.height, framing.width), np.uint8)
    inside = padded[:, place.top : place.top + place.height, place.left : place.left + place.width]
    inside[:] = fit_mask(mask, place.width, place.height)
    return padded


def box_rows(scene: Scene, framing: Preprocess) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Boxes (MAX_BOXES, 4) in pixels of the input and classes (MAX_BOXES,), padded with NO_BOX."""
    boxes = np.zeros((MAX_BOXES, 4), np.float32)
    classes = np.full(MAX_BOXES, NO_BOX, np.int64)
    rows = np.concatenate([scene.boxes, scene.ignored])[:MAX_BOXES]
    names = np.concatenate([scene.class_ids, np.full(len(scene.ignored), IGNORED)])[:MAX_BOXES]
    place = framing.geometry((scene.image.shape[0], scene.image.shape[1]))
    scale = np.array([place.scale_x, place.scale_y] * 2, np.float32)
    boxes[: len(rows)] = rows * scale + np.array([place.left, place.top] * 2, np.float32)
    classes[: len(rows)] = names
    return boxes, classes


class SceneArrays:
    """Rendered scenes in a folder of .npy files, memory-mapped.

    detector_images: (N, 3, h, w) uint8. boxes: (N, MAX_BOXES, 4) float32. classes: (N, MAX_BOXES) int64. lane_images:
    (N, 3, h, w) uint8. lane_masks: (N, 1, h, w) uint8.
    """

    NAMES = ("detector_images", "boxes", "classes", "lane_images", "lane_masks")

    def __init__(self, folder: Path) -> None:
        try:
            self.spec = json.loads((folder / "spec.json").read_text())
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in self.NAMES}
        except (OSError, ValueError, EOFError) as error:  # the last: an empty file
            raise DatasetError(f"{folder}: no rendered scenes ({error}); make them with `render`") from error
        self.detector_images = arrays["detector_images"]
        self.boxes = arrays["boxes"]
        self.classes = arrays["classes"]
        self.lane_images = arrays["lane_images"]
        self.lane_masks = arrays["lane_masks"]

    def __len__(self) -> int:
        return len(self.boxes)


def render(spec: RenderSpec, folder: Path, workers: int = 0) -> SceneArrays:
    """Render the scenes of `spec` into `folder` with `workers` processes (0: one per core); reuses existing ones.

    Waits while another process renders into `folder`, and then uses its scenes. Raises OSError that names the file if
    the disk is full, DatasetError if a process was killed; a failed rendering is removed.
    """
    wanted = spec.description
    there = _rendered(folder, wanted)
    if there is None:
        with _render_lock(folder):
            there = _rendered(folder, wanted)  # by the process waited for
            if there is None:
                _render(spec, folder, workers, wanted)
                there = SceneArrays(folder)
    return there


def _rendered(folder: Path, wanted: object) -> SceneArrays | None:
    """The scenes in `folder`, if they are complete and match `wanted`."""
    try:
        arrays = SceneArrays(folder)
    except DatasetError:
        return None
    return arrays if arrays.spec == wanted else None


@contextlib.contextmanager
def _render_lock(folder: Path) -> Iterator[None]:
    """A lock on `folder`, one process at a time; the system releases it if the process is killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process is rendering %s: waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _render(spec: RenderSpec, folder: Path, workers: int, wanted: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "spec.json"
    done.unlink(missing_ok=True)
    (dw, dh), (lw, lh) = spec.detector_size, spec.lane_size
    shapes: dict[str, tuple[tuple[int, ...], type]] = {
        "detector_images": ((3, dh, dw), np.uint8),
        "boxes": ((MAX_BOXES, 4), np.float32),
        "classes": ((MAX_BOXES,), np.int64),
        "lane_images": ((3, lh, lw), np.uint8),
        "lane_masks": ((1, lh, lw), np.uint8),
    }
    try:
        for name, (shape, kind) in shapes.items():
            _make_array(folder / f"{name}.npy", (spec.count, *shape), kind)
        _render_chunks(spec, folder, workers)
        for name in shapes:  # first, so that after a power loss no description stands beside arrays that were lost
            with (folder / f"{name}.npy").open("rb") as file:
                os.fsync(file.fileno())
        with atomic_write(done, to_disk=True) as temporary:
            temporary.write_text(json.dumps(wanted, indent=1) + "\n")
    except BaseException:
        for name in shapes:
            (folder / f"{name}.npy").unlink(missing_ok=True)
        raise


def _make_array(path: Path, shape: tuple[int, ...], kind: type) -> None:
    """Create a file of zeros, fully allocated: writing to a mapped page without disk space kills the process.

    Replaces an existing file, because other processes may still have that one open.
    """
    path.unlink(missing_ok=True)
    np.lib.format.open_memmap(path, "w+", kind, shape).flush()
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None


def _render_chunks(spec: RenderSpec, folder: Path, workers: int) -> None:
    step = 32
    chunks = [(spec, folder, first, min(first + step, spec.count)) for first in range(0, spec.count, step)]
    processes = min(workers or cpu_count(), len(chunks))
    with tqdm(total=spec.count, desc=f"render {folder.name}", unit="scene", mininterval=1.0) as bar:
        if processes == 1:
            for chunk in chunks:
                bar.update(_render_chunk(chunk))
        else:
            before = multiprocessing.active_children()
            # Not a multiprocessing.Pool, which waits forever if a process is killed.
            with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_process) as pool:
                try:
                    for count in pool.map(_render_chunk, chunks):
                        bar.update(count)
                except BrokenProcessPool:
                    # Leaving the pool waits for the others. It has sent them SIGTERM, which children of a rank of the
                    # fleet ignore as that does.
                    for process in multiprocessing.active_children():
                        if process not in before:
                            process.kill()
                    raise DatasetError(
                        f"{folder}: one of {processes} rendering processes was killed; is there too little memory?"
                    ) from None


def _begin_process() -> None:
    end_with_parent()  # each process of a pool holds both ends of its queue, and would wait there forever
    cv2.setNumThreads(1)
    torch.set_num_threads(1)


def _render_chunk(chunk: tuple[RenderSpec, Path, int, int]) -> int:
    spec, folder, first, last = chunk
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in SceneArrays.NAMES}
    detector, lane = spec.framing(spec.detector_size), spec.framing(spec.lane_size)
    for index in range(first, last):
        scene = spec.scene(index)
        arrays["detector_images"][index] = framed(scene.image, detector)
        arrays["boxes"][index], arrays["classes"][index] = box_rows(scene, detector)
        arrays["lane_images"][index] = framed(scene.image, lane)
        arrays["lane_masks"][index] = framed_mask(scene.lane_mask, lane, scene.image.shape[:2])
    return last - first


@dataclass(frozen=True)
class RoadFrame:
    """A real image (H, W, 3) uint8 RGB with its lane mask (h, w) uint8, nonzero = lane, of any size."""

    name: str
    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]


def road_frames(folder: Path, part: str) -> list[RoadFrame]:
    """Real road images with lane masks: a video NAME.mp4, photos NAME.jpg, and lane_masks/NAME_<frame>.png and
    NAME.png.

    part: "train": all videos but the last, "video": the last one by name; of a single video the first and the second
    half. "photos": the photos, "apart": the photos that were not taken from a video here. Raises DatasetError if there
    is nothing, or an image cannot be read.
    """
    if part not in ("train", "video", "photos", "apart"):
        raise ValueError(f"part {part!r}: not one of train, video, photos, apart")
    masks = sorted((folder / "lane_masks").glob("*.png"))
    if not masks:
        raise DatasetError(f"{folder}: no lane_masks/*.png")
    videos = sorted(folder.glob("*.mp4"))
    if part in ("photos", "apart"):
        frames = _photos(folder, masks, videos if part == "apart" else [])
    else:
        frames = []
        share = (0.0, 1.0)
        if len(videos) > 1:
            videos = videos[:-1] if part == "train" else videos[-1:]
        else:
            share = (0.0, 0.5) if part == "train" else (0.5, 1.0)
        for video in videos:
            frames += _video_frames(video, _masks_of(video, masks), share)
    if not frames:
        raise DatasetError(f"{folder}: no frames with masks for part {part!r}")
    return frames


def _photos(folder: Path, masks: list[Path], other_than: list[Path]) -> list[RoadFrame]:
    frames = []
    for path in masks:
        photo = folder / f"{path.stem}.jpg"
        if photo.exists():
            image = read_rgb(photo)
            frames.append((RoadFrame(path.stem, image, read_mask(path)), _small(image)))
    for video in other_than:
        for image in _video_images(video):
            other = _small(image[..., ::-1])
            frames = [(frame, small) for frame, small in frames if np.abs(small - other).mean() > SAME_ROAD]
    return [frame for frame, _ in frames]


def _masks_of(video: Path, masks: list[Path]) -> dict[int, Path]:
    """Those named <video>_<frame>.png, by frame; `a_b_7.png` is of a_b.mp4, not of a.mp4."""
    found = {}
    for path in masks:
        name, _, frame = path.stem.rpartition("_")
        if name == video.stem and frame.isdecimal():
            found[int(frame)] = path
    return found


def _video_frames(video: Path, masks: dict[int, Path], share: tuple[float, float]) -> list[RoadFrame]:
    frames: dict[int, RoadFrame] = {}
    count = 0  # known only at the end: what the file says may be wrong
    for count, image in enumerate(_video_images(video), 1):
        if (path := masks.get(count - 1)) is not None:
            name = f"{video.stem}_{count - 1:04d}"
            frames[count - 1] = RoadFrame(name, np.ascontiguousarray(image[..., ::-1]), read_mask(path))
    if beyond := [path for frame, path in masks.items() if frame >= count]:
        log.warning(
            "%s: %d masks are not used, such as %s: %d frames can be read, at most %d are",
            video, len(beyond), beyond[0].name, count, MAX_FRAMES,
        )  # fmt: skip
    wanted = range(int(count * share[0]), int(count * share[1]))
    return [frame for k, frame in frames.items() if k in wanted]


def _video_images(video: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """The frames one after the other, (H, W, 3) uint8 BGR. DatasetError if there is none."""
    capture = cv2.VideoCapture(str(video))
    try:
        for number in range(MAX_FRAMES):
            done, image = capture.read()
            if not done:
                if not number:
                    raise DatasetError(f"{video}: no frame can be read")
                return
            yield np.asarray(image, dtype=np.uint8)
    finally:
        capture.release()


def _small(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.asarray(cv2.resize(image, (240, 135), interpolation=cv2.INTER_AREA), dtype=np.float32)


def read_rgb(path: Path) -> npt.NDArray[np.uint8]:
    """An image file, (H, W, 3) uint8 RGB. DatasetError names one that cannot be read."""
    return np.ascontiguousarray(_read(path, cv2.IMREAD_COLOR)[..., ::-1], dtype=np.uint8)


def read_mask(path: Path) -> npt.NDArray[np.uint8]:
    """A mask file of any depth, (H, W) uint8: 255 where it is not 0. DatasetError names one that cannot be read."""
    # Without the second flag OpenCV keeps the high byte of 16 bits: small numbers of lanes would be 0.
    return np.asarray((_read(path, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH) > 0) * 255, dtype=np.uint8)


def _read(path: Path, mode: int) -> npt.NDArray[Any]:
    try:
        image = cv2.imread(str(path), mode)
    except cv2.error as error:  # more pixels than OpenCV allows, by the header
        raise DatasetError(f"{path}: not a readable image ({error.err})") from None
    if image is None:
        raise DatasetError(f"{path}: not a readable image")
    return image
