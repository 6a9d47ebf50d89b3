"""Data `road`: generated scenes with exact truth, rendered once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
import torch
from tqdm import tqdm

from multi_dnn_ros.common.atomic_files import atomic_write
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
    """Scenes 0 .. count - 1 of a seed. `sample` draws one; `read` takes it from a file, into which all are rendered
    first.

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
        self._file = folder / f"scenes_{seed}_{hashlib.sha256(key.encode()).hexdigest()[:12]}.npy"

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
        return {name: torch.from_numpy(self._stored[index][name].copy()) for name in self._stored.dtype.names or ()}

    @cached_property
    def _stored(self) -> np.ndarray:
        """The rendered scenes, memory-mapped, as a structured array. While one process renders, others wait.

        Raises OSError that names the file if the disk is full, DatasetError if a process was killed.
        """
        with waiting_lock(self._file.with_name(f".{self._file.name}.lock")):
            if not self._file.is_file():
                with atomic_write(self._file) as part:
                    self._render(part)
        try:
            stored: np.ndarray = np.load(self._file, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:  # EOFError: an empty file
            raise DatasetError(f"{self._file}: damaged ({error}); remove it, so that it is rendered again") from None
        return stored

    def _render(self, file: Path) -> None:
        chunks = [range(first, min(first + _CHUNK, self._count)) for first in range(0, self._count, _CHUNK)]
        processes = min(cpu_count(), len(chunks))
        with (
            tqdm(total=self._count, desc="render the road", unit="scene", mininterval=1.0) as bar,
            ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_process) as pool,
            file.open("wb") as out,
        ):
            try:
                for rows in pool.map(self._chunk, chunks):
                    if out.tell() == 0:
                        header = np.lib.format.header_data_from_array_1_0(rows) | {"shape": (self._count,)}
                        np.lib.format.write_array_header_2_0(out, header)
                    out.write(rows.tobytes())
                    bar.update(len(rows))
            except BrokenProcessPool:
                raise DatasetError(
                    f"{file}: one of {processes} rendering processes was killed; is there too little memory?"
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, do not render everything
                raise

    def _chunk(self, chunk: range) -> np.ndarray:
        rows = [{name: part.numpy() for name, part in fit(self.sample(k), self.framing).items()} for k in chunk]
        kinds = np.dtype([(name, part.dtype, part.shape) for name, part in rows[0].items()])
        stacked = np.empty(len(rows), kinds)
        for number, row in enumerate(rows):
            for name, part in row.items():
                stacked[number][name] = part
        return stacked


def _begin_process() -> None:
    end_with_parent()  # each process holds both ends of the pool's queue and would otherwise wait forever
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
