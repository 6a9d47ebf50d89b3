"""Data `road`: generated scenes with exact truth, rendered once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import cv2
import numpy as np
import torch
from tqdm import tqdm

from multi_dnn_ros.common.file_lock import waiting_lock
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.training.samples import IGNORED, NO_BOX, Batch, DatasetError, Rows, Sample, fit
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.vision.preprocess import Preprocess

#: Scenes that a process renders at a time.
_CHUNK = 32
#: Share of the training scenes that are rendered at 640x360 instead of 640x480.
_WIDE = 0.3


class RoadRows(Rows):
    """Scenes 0 .. count - 1 of a seed. `sample` draws one; `read` takes it from `folder`, where all are rendered first.

    labels: the network's classes, by whose numbers boxes are given; boxes of other classes are left out. truth: which
    truth rows have: "boxes", "lanes" or both. wide: whether some scenes are 640x360.
    """

    def __init__(
        self, folder: Path, count: int, seed: int, framing: Preprocess, labels: Sequence[str], truth: Sequence[str],
        *, wide: bool = False,
    ) -> None:  # fmt: skip
        self._count, self._seed, self._wide, self.framing, self._truth = count, seed, wide, framing, tuple(truth)
        self._numbers = np.array([labels.index(name) if name in labels else NO_BOX for name in LABELS])
        look = (framing.width, framing.height, framing.fit, framing.antialias, framing.centered, framing.pad)
        key = json.dumps([count, seed, wide, look, labels, self._truth])
        self._folder = folder / f"scenes_{seed}_{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        self._stored: Batch | None = None

    def __len__(self) -> int:
        return self._count

    def name(self, index: int) -> str:
        return f"scene {index}"

    def sample(self, index: int) -> Sample:
        height = 360 if self._wide and (index * 2654435761 % 2**32) < _WIDE * 2**32 else 480
        scene = SceneGenerator(640, height, self._seed).scene(index)
        if "boxes" not in self._truth:
            return Sample(scene.image, mask=scene.lane_mask)
        boxes = np.concatenate([scene.boxes, scene.ignored])
        classes = np.concatenate([self._numbers[scene.class_ids], np.full(len(scene.ignored), IGNORED)])
        shown = classes != NO_BOX
        mask = scene.lane_mask if "lanes" in self._truth else None
        return Sample(scene.image, boxes=boxes[shown], classes=classes[shown], mask=mask)

    def read(self, index: int) -> Batch:
        if self._stored is None:
            self._stored = self._rendered()
        return {name: array[index] for name, array in self._stored.items()}

    def _rendered(self) -> Batch:
        """The rendered scenes, memory-mapped. The folder gets its name when it is complete; while one process renders,
        others wait. Raises OSError that names the file if the disk is full, DatasetError if a process was killed.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with waiting_lock(self._folder.with_name(f".{self._folder.name}.lock")):
            if not self._folder.is_dir():
                part = self._folder.with_name(f".{self._folder.name}.part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                try:
                    self._render(part)
                    os.replace(part, self._folder)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
        try:
            arrays = {file.stem: np.load(file, mmap_mode="c") for file in sorted(self._folder.glob("*.npy"))}
            if not arrays or any(len(array) != self._count for array in arrays.values()):
                raise ValueError("not all scenes are there")
        except (OSError, ValueError, EOFError) as error:  # EOFError: an empty file
            raise DatasetError(f"{self._folder}: damaged ({error}); remove it, so that it is rendered again") from None
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _render(self, folder: Path) -> None:
        chunks = [range(first, min(first + _CHUNK, self._count)) for first in range(0, self._count, _CHUNK)]
        processes = min(cpu_count(), len(chunks))
        arrays: dict[str, np.memmap] = {}
        before = multiprocessing.active_children()
        with (
            tqdm(total=self._count, desc="render the road", unit="scene", mininterval=1.0) as bar,
            ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_process) as pool,
        ):
            try:
                for chunk, rows in zip(chunks, pool.map(self._chunk, chunks), strict=True):
                    for name, values in rows.items():
                        if name not in arrays:
                            arrays[name] = _allocated(folder / f"{name}.npy", (self._count, *values.shape[1:]), values)
                        arrays[name][chunk.start : chunk.stop] = values
                    bar.update(len(chunk))
            except BrokenProcessPool:
                raise DatasetError(
                    f"{folder}: one of {processes} rendering processes was killed; is there too little memory?"
                ) from None
            except BaseException:
                for process in multiprocessing.active_children():
                    if process not in before:
                        process.kill()  # after Ctrl-C the pool would wait until they have rendered everything
                raise
        for array in arrays.values():
            array.flush()

    def _chunk(self, chunk: range) -> dict[str, np.ndarray]:
        rows = [fit(self.sample(index), self.framing) for index in chunk]
        return {name: np.stack([row[name].numpy() for row in rows]) for name in rows[0]}


def _allocated(path: Path, shape: tuple[int, ...], values: np.ndarray) -> np.memmap:
    """A file of zeros, fully allocated, because writing to a mapped page without disk space kills the process."""
    array: np.memmap = np.lib.format.open_memmap(path, "w+", values.dtype, shape)
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    return array


def _begin_process() -> None:
    end_with_parent()  # each process holds both ends of the pool's queue and would otherwise wait forever
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
