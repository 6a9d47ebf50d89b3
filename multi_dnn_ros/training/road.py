"""Data `road`: generated scenes with exact truth, rendered once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import cv2
import filelock
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import IGNORED, NO_BOX, Batch, Rows, Sample, fit
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.vision.preprocess import Preprocess

#: Share of the training scenes that are rendered at 640x360 instead of 640x480.
_WIDE = 0.3
#: Fewer scenes are rendered sooner than processes are started.
_FEW = 100


class RoadRows(Rows):
    """Scenes 0 .. count - 1 of a seed. `sample` draws one; an index takes it from a file, into which all are rendered
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

    def __getitem__(self, index: int) -> Batch:
        return {name: torch.from_numpy(self._stored[index][name].copy()) for name in self._stored.dtype.names or ()}

    @cached_property
    def _stored(self) -> np.ndarray:
        """The rendered scenes, memory-mapped, as a structured array. While one process renders, others wait.

        Raises OSError that names the file if the disk is full.
        """
        with filelock.FileLock(self._file.with_name(f".{self._file.name}.lock")):
            if not self._file.is_file():
                with atomic_write(self._file) as part:
                    self._render(part)
        try:
            stored: np.ndarray = np.load(self._file, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:  # EOFError: an empty file
            raise DatasetError(f"{self._file}: damaged ({error}); remove it, so that it is rendered again") from None
        return stored

    def _render(self, file: Path) -> None:
        workers = cpu_count() if self._count >= _FEW else 0
        loader = DataLoader(
            _Rendered(self), batch_size=None, num_workers=workers, worker_init_fn=_use_one_thread,
            multiprocessing_context="spawn" if workers else None,
        )  # fmt: skip
        bar = tqdm(loader, "render the road", self._count, unit="scene", mininterval=1.0)
        with file.open("wb") as out:
            for kind, record in bar:  # written one by one: all together may be larger than the memory
                if out.tell() == 0:
                    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False}
                    np.lib.format.write_array_header_2_0(out, {**header, "shape": (self._count,)})
                out.write(record)


class _Rendered(Dataset[tuple[np.dtype, bytes]]):
    """Rows as records of a structured array: type and content."""

    def __init__(self, rows: RoadRows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[np.dtype, bytes]:
        row = fit(self.rows.sample(index), self.rows.framing)
        record = np.empty((), np.dtype([(name, part.numpy().dtype, part.shape) for name, part in row.items()]))
        for name, part in row.items():
            record[name] = part.numpy()
        return record.dtype, record.tobytes()


def _use_one_thread(worker: int) -> None:
    cv2.setNumThreads(1)
