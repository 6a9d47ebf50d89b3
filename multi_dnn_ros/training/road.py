"""Data `road`: generated scenes with exact truth, rendered once and kept in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import cv2
import filelock
import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.training.data_kinds import DatasetError
from multi_dnn_ros.training.samples import IGNORED, NO_BOX, Batch, Item, Rows, Sample
from multi_dnn_ros.training.scenes import LABELS, SceneGenerator
from multi_dnn_ros.vision.preprocess import Preprocess

#: Seeds of the scenes of each part.
SEEDS = {"train": 1, "choice": 2, "test": 3}
#: Share of the training scenes that are rendered at 640x360 instead of 640x480.
_WIDE = 0.3
#: Fewer scenes are rendered sooner than processes are started.
_FEW = 100


def road_items(
    folder: Path, part: str, *, count: int, framing: Preprocess, labels: Sequence[str], truth: Sequence[str]
) -> list[Item]:
    """The scenes of a part, all of which are rendered into a file when the first one is needed as a row.

    count: of the training part; the others have a twelfth of it, at least 8. labels: the network's classes, by whose
    numbers boxes are given; boxes of other classes are left out. truth: "boxes", "lanes" or both.
    """
    wide, seed = part == "train", SEEDS[part]
    count = count if wide else max(8, count // 12)
    look = (framing.width, framing.height, framing.fit, framing.antialias, framing.centered, framing.pad)
    key = hashlib.sha256(json.dumps([count, seed, wide, look, labels, truth]).encode()).hexdigest()[:12]
    loads = [
        partial(_sample, 360 if wide and k * 2654435761 % 2**32 < _WIDE * 2**32 else 480, seed, k, labels, truth)
        for k in range(count)
    ]
    items = [Item(f"scene {k}", str(k), load) for k, load in enumerate(loads)]
    rendered = _Rendered(folder / f"scenes_{seed}_{key}.pt", Rows(items, framing))
    return [item._replace(row=partial(rendered.row, k)) for k, item in enumerate(items)]


def _sample(height: int, seed: int, index: int, labels: Sequence[str], truth: Sequence[str]) -> Sample:
    scene = SceneGenerator(640, height, seed).scene(index)
    mask = scene.lane_mask if "lanes" in truth else None
    if "boxes" not in truth:
        return Sample(scene.image, mask=mask)
    numbers = np.array([labels.index(name) if name in labels else NO_BOX for name in LABELS])
    boxes = np.concatenate([scene.boxes, scene.ignored])
    classes = np.concatenate([numbers[scene.class_ids], np.full(len(scene.ignored), IGNORED)])
    shown = classes != NO_BOX
    return Sample(scene.image, boxes=boxes[shown], classes=classes[shown], mask=mask)


@dataclass
class _Rendered:
    """The rows of scenes, kept in a file."""

    file: Path
    rows: Rows

    def row(self, index: int) -> Batch:
        return {name: values[index].clone() for name, values in self._stored.items()}

    @cached_property
    def _stored(self) -> Batch:
        """All rows by name, memory-mapped. While one process renders, others wait. Raises DatasetError."""
        with filelock.FileLock(self.file.with_name(f".{self.file.name}.lock")):
            if not self.file.is_file():
                self._render()
        try:
            stored: Batch = torch.load(self.file, mmap=True, weights_only=True)
        except Exception as error:  # torch.load raises arbitrary errors for damaged bytes
            damaged = f"{self.file}: damaged ({summarize_error(error)}); remove it, so that it is rendered again"
            raise DatasetError(damaged) from None
        return stored

    def _render(self) -> None:
        workers = cpu_count() if len(self.rows) >= _FEW else 0
        loader = DataLoader(
            self.rows, batch_size=None, num_workers=workers, worker_init_fn=_use_one_thread,
            multiprocessing_context="spawn" if workers else None,
        )  # fmt: skip
        stored: Batch = {}
        for k, row in enumerate(tqdm(loader, "render the road", len(self.rows), unit="scene", mininterval=1.0)):
            for name, value in row.items():
                stored.setdefault(name, value.new_empty(len(self.rows), *value.shape))[k] = value
        try:
            with atomic_write(self.file) as part, part.open("wb") as out:
                torch.save(stored, out)
        except (OSError, RuntimeError) as error:  # PyTorch's writer raises a RuntimeError on top of the system's error
            raise DatasetError(f"{self.file}: cannot be written ({summarize_error(error)})") from None


def _use_one_thread(worker: int) -> None:
    cv2.setNumThreads(1)
