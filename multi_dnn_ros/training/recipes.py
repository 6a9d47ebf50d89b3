"""How the three networks that come with the package are trained: data, loss, score and schedule of each."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from multi_dnn_ros.models.decoders.yolo import YoloDecoder
from multi_dnn_ros.models.networks import DetectorNet, build
from multi_dnn_ros.models.preprocess import Preprocess
from multi_dnn_ros.training.batches import ArrayBatches, vary_detection, vary_lanes
from multi_dnn_ros.training.datasets import IGNORED, NO_BOX, RenderSpec, RoadFrame, SceneArrays, fit, fit_mask
from multi_dnn_ros.training.loop import Batches, Loss, Schedule, Score
from multi_dnn_ros.training.losses import DetectionLoss, LaneLoss
from multi_dnn_ros.training.metrics import LaneScore, Truth, mean_average_precision

DETECTOR_SIZE = (384, 288)
LANE_SIZE = (320, 192)

#: Seeds of the scenes: to train on, to choose the best epoch by, and (never seen by either) to publish figures for.
TRAIN_SEED, CHOICE_SEED, UNSEEN_SEED = 1, 2, 3


def train_spec(count: int) -> RenderSpec:
    return RenderSpec(count, TRAIN_SEED, DETECTOR_SIZE, LANE_SIZE, wide=0.3)


def choice_spec(count: int) -> RenderSpec:
    return RenderSpec(count, CHOICE_SEED, DETECTOR_SIZE, LANE_SIZE, wide=0.0)


@dataclass(frozen=True)
class Recipe:
    """One network and how to train it. classes: those of `scenes.LABELS` it finds, in its own order."""

    role: str
    architecture: str
    arguments: dict[str, Any]
    input_size: tuple[int, int]
    labels: tuple[str, ...]
    decoder: str
    classes: tuple[int, ...]
    batch_size: int
    schedule: Schedule
    main: str

    def network(self) -> nn.Module:
        torch.manual_seed(self.schedule.seed)
        return build(self.architecture, self.arguments)


def recipe(role: str, epochs: int, batch_size: int, lr: float) -> Recipe:
    """The recipe of `lane`, `object` or `pedestrian`."""
    if role == "lane":
        schedule = Schedule(epochs, lr, seed=11, score_every=2)
        return Recipe("lane", "LaneNet", {}, LANE_SIZE, ("lane",), "lane", (), batch_size, schedule, "f1")
    classes = {"object": (0, 1), "pedestrian": (2,)}.get(role)
    if classes is None:
        raise ValueError(f"role {role!r}: not one of lane, object, pedestrian")
    labels = ("car", "truck") if role == "object" else ("pedestrian",)
    arguments = {"classes": len(labels), "input_size": list(DETECTOR_SIZE)}
    schedule = Schedule(epochs, lr, seed=12 + len(labels), score_every=2)
    return Recipe(
        role, "DetectorNet", arguments, DETECTOR_SIZE, labels, "yolo", classes, batch_size, schedule, "map50"
    )  # fmt: skip


@dataclass(frozen=True)
class Exercise:
    """What the loop needs for a recipe on a device."""

    batches: Batches
    loss: Loss
    score: Score


def lane_exercise(
    recipe: Recipe,
    scenes: SceneArrays,
    choice: SceneArrays,
    road: Sequence[RoadFrame],
    device: torch.device,
    road_share: float = 0.2,
) -> Exercise:
    """Generated scenes, and real frames repeated until they make up `road_share` of what is shown."""
    images, masks = [_tensor(scenes.lane_images)], [_tensor(scenes.lane_masks)]
    repeats = torch.ones(len(scenes), dtype=torch.int64)
    if road:
        images.append(torch.from_numpy(np.stack([fit(frame.image, *recipe.input_size) for frame in road])))
        masks.append(torch.from_numpy(np.stack([fit_mask(frame.mask, *recipe.input_size) for frame in road])))
        times = max(1, round(road_share / (1 - road_share) * len(scenes) / len(road)))
        repeats = torch.cat([repeats, torch.full((len(road),), times)])
    arrays = {"image": torch.cat(images).to(device), "mask": torch.cat(masks).to(device)}
    batches = ArrayBatches(arrays, recipe.batch_size, recipe.schedule.seed, vary_lanes, repeats)
    shown, true = _tensor(choice.lane_images).to(device), choice.lane_masks

    def score(network: nn.Module) -> dict[str, float]:
        counted = LaneScore()
        for k, logits in enumerate(_outputs(network, shown)):
            counted.add((logits[0] > 0).numpy(), np.asarray(true[k, 0]) >= 102)
        return {"f1": counted.f1, "precision": counted.precision, "recall": counted.recall}

    return Exercise(batches, LaneLoss(), score)


def detector_exercise(recipe: Recipe, scenes: SceneArrays, choice: SceneArrays, device: torch.device) -> Exercise:
    """Generated scenes; objects of other classes do not exist for the network."""
    arrays = {
        "image": _tensor(scenes.detector_images).to(device),
        "boxes": _tensor(scenes.boxes).to(device),
        "classes": own_classes(_tensor(scenes.classes), recipe.classes).to(device),
    }
    batches = ArrayBatches(arrays, recipe.batch_size, recipe.schedule.seed, vary_detection)
    shown = _tensor(choice.detector_images).to(device)
    classes, boxes = own_classes(_tensor(choice.classes), recipe.classes).numpy(), np.asarray(choice.boxes)
    truths = [Truth(b[c >= 0], c[c >= 0], b[c == IGNORED]) for b, c in zip(boxes, classes, strict=True)]
    width, height = recipe.input_size
    decoder = YoloDecoder(Preprocess(width, height), recipe.labels, score_threshold=0.01, iou_threshold=0.6)

    def score(network: nn.Module) -> dict[str, float]:
        found = [decoder((output[None],), (height, width)) for output in _outputs(network, shown)]
        return mean_average_precision(found, truths, recipe.labels)  # type: ignore[arg-type]

    return Exercise(batches, DetectionLoss(recipe.input_size, DetectorNet.STRIDES), score)


def own_classes(classes: Tensor, kept: Sequence[int]) -> Tensor:
    """(N, M) class numbers of the scenes -> a network's own numbers; objects that it does not find become NO_BOX."""
    own = torch.full_like(classes, NO_BOX)
    own[classes == IGNORED] = IGNORED
    for number, class_id in enumerate(kept):
        own[classes == class_id] = number
    return own


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array))


@torch.no_grad()
def _outputs(network: nn.Module, images: Tensor, size: int = 64) -> list[Tensor]:
    """Outputs for (N, 3, h, w) uint8 images one by one, float32 on the CPU."""
    rows: list[Tensor] = []
    for first in range(0, len(images), size):
        rows.extend(network(images[first : first + size].float() / 255.0).float().cpu())
    return rows


def provenance(recipe: Recipe, data: dict[str, Any], best: dict[str, float], epoch: int) -> dict[str, Any]:
    """What is written into a weights file about how it was made."""
    return {
        "data": data,
        "schedule": asdict(recipe.schedule),
        "batch_size": recipe.batch_size,
        "kept_epoch": epoch,
        "choice_scores": best,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of everything that decides pixels and weights."""
    libraries = {"torch": torch.__version__, "numpy": np.__version__, "cv2": cv2.__version__}
    return {"python": platform.python_version(), **libraries}


def export(network: nn.Module, recipe: Recipe, training: dict[str, Any], path: Path) -> None:
    """Write the weights as safetensors with everything needed to build and use the network in the header.

    Header keys, all JSON: architecture, arguments, input_size (width, height), labels, decoder, training. Written
    beside and renamed.
    """
    from safetensors.torch import save_file

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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    save_file(weights, beside, metadata={name: json.dumps(value) for name, value in header.items()})
    beside.chmod(0o644)  # safetensors writes for its owner only
    beside.replace(path)
