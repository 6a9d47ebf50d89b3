"""Training recipes of the package's three networks: data, loss, score and schedule."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.models.artifact import write_safetensors
from multi_dnn_ros.models.networks import DetectorNet, build
from multi_dnn_ros.training.batches import Augment, Inputs
from multi_dnn_ros.training.data import (
    SEEDS,
    Data,
    DataRequest,
    Rows,
    Task,
    drive_rows,
    in_memory,
    open_data,
    road_rows,
)
from multi_dnn_ros.training.datasets import RenderSpec, RoadFrame, SceneArrays
from multi_dnn_ros.training.loop import Loss, Schedule
from multi_dnn_ros.training.losses import DetectionLoss, LaneLoss
from multi_dnn_ros.training.road_augmentation import augment_roads
from multi_dnn_ros.training.setup import MAIN, TrainingSetup, make_batches, score_rows
from multi_dnn_ros.vision.decoders.base import Decoder
from multi_dnn_ros.vision.decoders.lane import LaneDecoder
from multi_dnn_ros.vision.decoders.yolo import YoloDecoder
from multi_dnn_ros.vision.preprocess import Preprocess

DETECTOR_SIZE = (384, 288)
LANE_SIZE = (320, 192)


def train_spec(count: int) -> RenderSpec:
    return RenderSpec(count, SEEDS["train"], DETECTOR_SIZE, LANE_SIZE, wide=0.3)


def validation_spec(count: int) -> RenderSpec:
    return RenderSpec(count, SEEDS["choice"], DETECTOR_SIZE, LANE_SIZE, wide=0.0)


@dataclass(frozen=True)
class Recipe:
    """One network and its training settings."""

    role: str
    architecture: str
    arguments: dict[str, Any]
    input_size: tuple[int, int]
    labels: tuple[str, ...]
    decoder: str
    batch_size: int
    schedule: Schedule

    def network(self) -> nn.Module:
        torch.manual_seed(self.schedule.seed)
        return build(self.architecture, self.arguments)


def recipe(role: str, epochs: int, batch_size: int, lr: float) -> Recipe:
    """The recipe of `lane`, `object` or `pedestrian`."""
    if role == "lane":
        schedule = Schedule(epochs, lr, seed=11, score_every=2)
        return Recipe("lane", "LaneNet", {}, LANE_SIZE, ("lane",), "lane", batch_size, schedule)
    labels = {"object": ("car", "truck"), "pedestrian": ("pedestrian",)}.get(role)
    if labels is None:
        raise ValueError(f"role {role!r}: not one of lane, object, pedestrian")
    arguments = {"classes": len(labels), "input_size": list(DETECTOR_SIZE)}
    schedule = Schedule(epochs, lr, seed=12 + len(labels), score_every=2)
    return Recipe(role, "DetectorNet", arguments, DETECTOR_SIZE, labels, "yolo", batch_size, schedule)


def lane_setup(
    recipe: Recipe, scenes: SceneArrays, validation: SceneArrays, road: Sequence[RoadFrame], device: torch.device,
    *, varied: bool = False,
) -> TrainingSetup:  # fmt: skip
    """Training on generated scenes and on real frames, repeated to a fifth of the rows. varied: see `augment_roads`."""
    sets: list[Rows] = [road_rows(scenes, "lanes", recipe.labels)]
    if road:
        sets.append(drive_rows(road, Preprocess(*recipe.input_size)))
    decoder = LaneDecoder(Preprocess(*recipe.input_size), recipe.labels, score_threshold=0.5)
    validation_rows = [road_rows(validation, "lanes", recipe.labels)]
    augment = augment_roads if varied else None
    return _setup(recipe, "lanes", sets, validation_rows, LaneLoss(), decoder, device, augment)


def real_images(recipe: Recipe, folder: Path) -> Data:
    """Images with boxes in `folder`, in COCO's layout, framed for the network. Raises DatasetError."""
    framing = Preprocess(*recipe.input_size)
    return open_data(f"coco:{folder}", DataRequest("boxes", framing, recipe.labels))


def detector_setup(
    recipe: Recipe, scenes: SceneArrays, validation: SceneArrays, device: torch.device, real: Data | None = None
) -> TrainingSetup:
    """Training on generated scenes, without objects of other classes.

    real: real images, repeated to a fifth of the rows; the best epoch is then selected by the mean of the scores on the
    generated scenes and on the validation part of the real images.
    """
    decoder = YoloDecoder(Preprocess(*recipe.input_size), recipe.labels, score_threshold=0.01, iou_threshold=0.6)
    loss = DetectionLoss(recipe.input_size, DetectorNet.STRIDES)
    sets: list[Rows] = [road_rows(scenes, "boxes", recipe.labels)]
    validation_rows: list[Rows] = [road_rows(validation, "boxes", recipe.labels)]
    if real is not None:
        sets.append(in_memory(real.part("train")))
        validation_rows.append(in_memory(real.part("choice")))
    return _setup(recipe, "boxes", sets, validation_rows, loss, decoder, device)


def _setup(
    recipe: Recipe, task: Task, sets: Sequence[Rows], validation: Sequence[Rows], loss: Loss, decoder: Decoder,
    device: torch.device, augment: Augment | None = None,
) -> TrainingSetup:  # fmt: skip
    inputs = Inputs(recipe.input_size)
    main = MAIN[task]

    def score(network: nn.Module) -> dict[str, float]:
        each = [score_rows(network, task, rows, inputs, decoder, recipe.labels) for rows in validation]
        if len(each) == 1:
            return each[0]
        by_kind = {f"{main}_{name}": scores[main] for name, scores in zip(("generated", "real"), each, strict=True)}
        return {main: sum(by_kind.values()) / len(by_kind), **by_kind}

    batches = make_batches(sets, task, inputs, recipe.batch_size, recipe.schedule.seed, device, augment=augment)
    return TrainingSetup(batches, loss, score, main)


def provenance(recipe: Recipe, data: dict[str, Any], best: dict[str, float], epoch: int) -> dict[str, Any]:
    """Training metadata written into a weights file."""
    return {
        "data": data,
        "schedule": asdict(recipe.schedule),
        "batch_size": recipe.batch_size,
        "kept_epoch": epoch,
        "choice_scores": best,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of all packages that affect pixels and weights."""
    libraries = {"torch": torch.__version__, "numpy": np.__version__, "cv2": cv2.__version__}
    return {"python": platform.python_version(), **libraries}


def export(network: nn.Module, recipe: Recipe, training: dict[str, Any], path: Path) -> None:
    """Write the weights as safetensors, with a header from which the network can be built and used.

    Header keys, all JSON: architecture, arguments, input_size (width, height), labels, decoder, training. Written
    atomically.
    """
    weights = {name: value.detach().float().cpu().contiguous() for name, value in network.state_dict().items()
               if not name.endswith("num_batches_tracked")}  # fmt: skip
    header = {
        "architecture": recipe.architecture,
        "arguments": recipe.arguments,
        "input_size": list(recipe.input_size),
        "labels": list(recipe.labels),
        "decoder": recipe.decoder,
        "training": training,
    }
    with atomic_write(path) as temporary:
        write_safetensors(temporary, weights, header)
