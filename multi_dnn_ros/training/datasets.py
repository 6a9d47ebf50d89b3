"""Training data: generated scenes rendered once into arrays, and real road frames with lane masks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import multiprocessing
import os
import signal
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
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.training.scenes import Scene, SceneGenerator
from multi_dnn_ros.vision.preprocess import Preprocess, ResizeMode

log = logging.getLogger(__name__)

#: Maximum number of boxes per image, ignored ones included; a generated scene has fewer than half as many.
MAX_BOXES = 96
#: A photo whose mean difference from a video frame (grey levels at 240x135) is at most this was taken from the video.
#: Consecutive frames of the available video differ by 3, photos of other roads by 18 or more.
SAME_ROAD = 6.0
#: Maximum number of frames read from a video. Those with masks are kept in memory.
MAX_FRAMES = 2_000
#: Class numbers of padding rows, of ignored boxes, and of crowds, which are also ignored: CROWD - k for class k.
NO_BOX, IGNORED, CROWD = -1, -2, -3


class DatasetError(ValueError):
    """A data set is missing, empty or malformed; the message names the file or folder."""


@dataclass(frozen=True)
class RenderSpec:
    """The scenes to render, and the network input sizes (width, height) to store them in.

    wide: share of the scenes rendered at 640x360 instead of 640x480. fit, antialias, centered: how scenes are fitted to
    the inputs, as in Preprocess. pad: grey level of the padding, 0..255.
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
        """The fields as JSON values. Framing options with default values are left out, because scenes stored by earlier
        versions have no such options.
        """
        given = {name: value for name, value in asdict(self).items() if name not in FRAMING or value != FRAMING[name]}
        content: dict[str, Any] = json.loads(json.dumps(given))
        return content

    def framing(self, size: tuple[int, int]) -> Preprocess:
        """How a scene is fitted to an input of `size` (width, height)."""
        return Preprocess(
            *size, fit=self.fit, antialias=self.antialias, centered=self.centered, pad=self.pad / 255
        )  # fmt: skip

    def scene(self, index: int) -> Scene:
        """Scene number `index` of this set, 0 .. count - 1."""
        number = self.first + index
        height = 360 if (number * 2654435761 % 2**32) < self.wide * 2**32 else 480
        return SceneGenerator(640, height, self.seed).scene(number)


#: Options of RenderSpec for fitting scenes to inputs, with their defaults.
FRAMING: dict[str, Any] = {
    field.name: field.default for field in fields(RenderSpec) if field.name in ("fit", "antialias", "centered", "pad")
}


def framing_options(framing: Preprocess) -> dict[str, Any]:
    """The options of RenderSpec for a framing: those that differ from their defaults and have an effect."""
    options: dict[str, Any] = {"fit": framing.fit, "antialias": framing.antialias}
    if framing.fit == "letterbox":
        options |= {"centered": framing.centered, "pad": round((framing.pad or 0.0) * 255)}
    return {name: value for name, value in options.items() if value != FRAMING[name]}


def framed(image: npt.NDArray[np.uint8], framing: Preprocess) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 -> (3, height, width) uint8, resized exactly as the node does before the network.

    framing: RGB, without mean and std.
    """
    (values,) = framing(torch.from_numpy(np.array(image)))
    return np.asarray(values[0].mul_(255.0).round_().to(torch.uint8).numpy(), dtype=np.uint8)


def fit_mask(mask: npt.NDArray[Any], width: int, height: int) -> npt.NDArray[np.uint8]:
    """(H, W), nonzero = lane -> (1, height, width) uint8, 0..255 = share of the pixel that is lane."""
    area = cv2.resize((mask > 0).astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(np.rint(area * 255), dtype=np.uint8)[None]


def framed_mask(mask: npt.NDArray[Any], framing: Preprocess, image_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """`fit_mask` in the area of the input that an image of `image_size` (H, W) occupies; the padding is not lane."""
    area = framing.geometry(image_size)
    padded = np.zeros((1, framing.height, framing.width), np.uint8)
    inside = padded[:, area.top : area.top + area.height, area.left : area.left + area.width]
    inside[:] = fit_mask(mask, area.width, area.height)
    return padded


def box_rows(scene: Scene, framing: Preprocess) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Boxes (MAX_BOXES, 4) in pixels of the input and classes (MAX_BOXES,), padded with NO_BOX."""
    boxes = np.zeros((MAX_BOXES, 4), np.float32)
    classes = np.full(MAX_BOXES, NO_BOX, np.int64)
    rows = np.concatenate([scene.boxes, scene.ignored])[:MAX_BOXES]
    numbers = np.concatenate([scene.class_ids, np.full(len(scene.ignored), IGNORED)])[:MAX_BOXES]
    area = framing.geometry((scene.image.shape[0], scene.image.shape[1]))
    scale = np.array([area.scale_x, area.scale_y] * 2, np.float32)
    boxes[: len(rows)] = rows * scale + np.array([area.left, area.top] * 2, np.float32)
    classes[: len(rows)] = numbers
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
        except (OSError, ValueError, EOFError) as error:  # EOFError: an empty file
            raise DatasetError(f"{folder}: no rendered scenes ({error})") from error
        self.detector_images = arrays["detector_images"]
        self.boxes = arrays["boxes"]
        self.classes = arrays["classes"]
        self.lane_images = arrays["lane_images"]
        self.lane_masks = arrays["lane_masks"]

    def __len__(self) -> int:
        return len(self.boxes)


def render(spec: RenderSpec, folder: Path, workers: int = 0) -> SceneArrays:
    """Render the scenes of `spec` into `folder` with `workers` processes (0: one per core), unless they exist.

    Waits while another process renders into `folder`, and then uses its scenes. Raises OSError that names the file if
    the disk is full, DatasetError if a process was killed; a failed rendering is removed.
    """
    wanted = spec.description
    arrays = _rendered(folder, wanted)
    if arrays is None:
        with _render_lock(folder):
            arrays = _rendered(folder, wanted)  # perhaps by the process that held the lock
            if arrays is None:
                _render(spec, folder, workers, wanted)
                arrays = SceneArrays(folder)
    return arrays


def _rendered(folder: Path, wanted: object) -> SceneArrays | None:
    """The scenes in `folder`, if they are complete and match `wanted`."""
    try:
        arrays = SceneArrays(folder)
    except DatasetError:
        return None
    return arrays if arrays.spec == wanted else None


@contextlib.contextmanager
def _render_lock(folder: Path) -> Iterator[None]:
    """Lock `folder`, so that one process at a time renders; the system releases the lock if the process is killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another process is rendering %s; waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _render(spec: RenderSpec, folder: Path, workers: int, wanted: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spec_file = folder / "spec.json"
    spec_file.unlink(missing_ok=True)
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
        for name in shapes:  # before the description, which must not outlive its arrays in a power loss
            with (folder / f"{name}.npy").open("rb") as file:
                os.fsync(file.fileno())
        with atomic_write(spec_file, to_disk=True) as temporary:
            temporary.write_text(json.dumps(wanted, indent=1) + "\n")
    except BaseException:
        for name in shapes:
            (folder / f"{name}.npy").unlink(missing_ok=True)
        raise


def _make_array(path: Path, shape: tuple[int, ...], kind: type) -> None:
    """Create a file of zeros, fully allocated, because writing to a mapped page without disk space kills the process.

    An existing file is not overwritten but replaced, because other processes may still have it open.
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
                    with block_in_children(signal.SIGINT):  # Ctrl-C reaches all processes; they end with this one
                        # Not pool.map, which cancels the others after an error; then the end of the pool prints one.
                        rendered = [pool.submit(_render_chunk, chunk) for chunk in chunks]
                    for future in rendered:
                        bar.update(future.result())
                except BaseException as error:
                    # Leaving the `with` block waits for the other processes, after Ctrl-C until they have rendered
                    # everything. A broken pool has sent them SIGTERM, which they ignore if a rank of the fleet has
                    # started them, because the rank ignores it.
                    for process in multiprocessing.active_children():
                        if process not in before:
                            process.kill()
                    if not isinstance(error, BrokenProcessPool):
                        raise
                    raise DatasetError(
                        f"{folder}: one of {processes} rendering processes was killed; is there too little memory?"
                    ) from None


def _begin_process() -> None:
    end_with_parent()  # each process holds both ends of the pool's queue and would otherwise wait forever
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

    part: "train": all videos but the last by name, "video": the last; a single video is divided into its first and its
    second half. "photos": all photos, "other_photos": the photos that are not frames of a video in the folder.
    Raises DatasetError if there is nothing, or if an image cannot be read.
    """
    if part not in ("train", "video", "photos", "other_photos"):
        raise ValueError(f"part {part!r}: not one of train, video, photos, other_photos")
    masks = sorted((folder / "lane_masks").glob("[!.]*.png"))
    if not masks:
        raise DatasetError(f"{folder}: no lane_masks/*.png")
    videos = sorted(folder.glob("[!.]*.mp4"))
    if part in ("photos", "other_photos"):
        frames = _photos(folder, masks, videos if part == "other_photos" else [])
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


def _photos(folder: Path, masks: list[Path], videos: list[Path]) -> list[RoadFrame]:
    """Photos with masks, without those that are frames of `videos`."""
    frames = []
    for path in masks:
        photo = folder / f"{path.stem}.jpg"
        if photo.exists():
            image = read_rgb(photo)
            frames.append((RoadFrame(path.stem, image, read_mask(path)), _small(image)))
    for video in videos:
        for image in _video_images(video):
            other = _small(image[..., ::-1])
            frames = [(frame, small) for frame, small in frames if np.abs(small - other).mean() > SAME_ROAD]
    return [frame for frame, _ in frames]


def _masks_of(video: Path, masks: list[Path]) -> dict[int, Path]:
    """The masks named <video>_<frame>.png, by frame number; `a_b_7.png` belongs to a_b.mp4, not to a.mp4."""
    found = {}
    for path in masks:
        name, _, frame = path.stem.rpartition("_")
        if name == video.stem and frame.isdecimal():
            found[int(frame)] = path
    return found


def _video_frames(video: Path, masks: dict[int, Path], share: tuple[float, float]) -> list[RoadFrame]:
    frames: dict[int, RoadFrame] = {}
    count = 0  # not taken from the file, whose header may be wrong
    for count, image in enumerate(_video_images(video), 1):
        if (path := masks.get(count - 1)) is not None:
            name = f"{video.stem}_{count - 1:04d}"
            frames[count - 1] = RoadFrame(name, np.ascontiguousarray(image[..., ::-1]), read_mask(path))
    if beyond := [path for frame, path in masks.items() if frame >= count]:
        log.warning(
            "%s: %d masks are not used, such as %s, because only %d frames were read (limit: %d)",
            video, len(beyond), beyond[0].name, count, MAX_FRAMES,
        )  # fmt: skip
    wanted = range(int(count * share[0]), int(count * share[1]))
    return [frame for k, frame in frames.items() if k in wanted]


def _video_images(video: Path) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the frames, (H, W, 3) uint8 BGR. Raises DatasetError if there is none."""
    capture = cv2.VideoCapture(str(video))
    try:
        for number in range(MAX_FRAMES):
            success, image = capture.read()
            if not success:
                if not number:
                    raise DatasetError(f"{video}: no frame can be read")
                return
            yield np.asarray(image, dtype=np.uint8)
    finally:
        capture.release()


def _small(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.asarray(cv2.resize(image, (240, 135), interpolation=cv2.INTER_AREA), dtype=np.float32)


def read_rgb(path: Path) -> npt.NDArray[np.uint8]:
    """An image file, (H, W, 3) uint8 RGB. Raises DatasetError, which names the file, if it cannot be read."""
    return np.ascontiguousarray(_read(path, cv2.IMREAD_COLOR)[..., ::-1], dtype=np.uint8)


def read_mask(path: Path) -> npt.NDArray[np.uint8]:
    """A mask file of any depth, (H, W) uint8: 255 where it is not 0. Raises DatasetError if it cannot be read."""
    # Without the second flag OpenCV keeps only the high byte of 16-bit values: small lane numbers would become 0.
    return np.asarray((_read(path, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH) > 0) * 255, dtype=np.uint8)


def _read(path: Path, mode: int) -> npt.NDArray[Any]:
    try:
        image = cv2.imread(str(path), mode)
    except cv2.error as error:  # the header claims more pixels than OpenCV allows
        raise DatasetError(f"{path}: not a readable image ({error.err})") from None
    if image is None:
        raise DatasetError(f"{path}: not a readable image")
    return image
