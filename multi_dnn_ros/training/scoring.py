"""Runs a network on the rows of a data set, and scores its results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from tqdm import tqdm

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.planning.timing import Target, prepared
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.losses import logits_of
from multi_dnn_ros.training.metrics import LaneScore, NoTruth, Truth, box_points
from multi_dnn_ros.training.samples import Batch, Rows, truth_of
from multi_dnn_ros.training.trainable import SingleImages, Trainable
from multi_dnn_ros.vision.result_kind import ResultKind

#: The deciding score by task; larger is better.
MAIN: dict[Task, str] = {"classes": "top1", "boxes": "map50", "lanes": "f1"}
#: Minimum value of a lane pixel in a true mask (0..255): two fifths.
LANE_SHARE = 102
#: Score thresholds at which precision and recall are listed.
THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))
#: The node's default NMS threshold.
_NODE_IOU = 0.5


def device_of(network: nn.Module) -> torch.device:
    """The device of a network's weights or buffers; the CPU if it has neither."""
    return next(chain(network.parameters(), network.buffers()), torch.empty(0)).device


@torch.no_grad()
def _run(
    trained: Trainable, network: nn.Module, rows: Rows, batch_size: int, progress: str
) -> Iterator[tuple[Any, Batch]]:
    """Yield (raw outputs, batch), in the order of the rows, on the network's device. progress: title of the bar."""
    device = device_of(network)
    with tqdm(total=len(rows), desc=progress, unit="image", disable=None if progress else True) as bar:
        for batch in DataLoader(rows, batch_size):
            image = batch["image"].to(device)
            yield network(trained.inputs(image.float() / 255.0)), batch
            bar.update(len(image))


def score_rows(
    trained: Trainable, rows: Rows, network: nn.Module | None = None, batch_size: int = 64, progress: str = ""
) -> dict[str, float]:
    """Scores by name: top1 and top5; or map50, map50 of each class, and map; or f1, precision and recall; or what the
    result kind of another package returns.

    network: in eval mode, run instead of the network of `trained`. Boxes and lanes are compared in pixels of its input,
    which preserves overlaps.
    """
    found = _run(trained, trained.network if network is None else network, rows, batch_size, progress)
    if trained.kind is None or trained.decoder is None:
        ranked = [
            logits_of(outputs).float().cpu().topk(min(5, outputs.shape[1]), dim=1).indices == batch["label"][:, None]
            for outputs, batch in found
        ]
        hits = torch.cat(ranked).double()
        return {"top1": float(hits[:, 0].mean()), "top5": float(hits.amax(dim=1).mean())}
    kind, decoder = trained.kind, trained.decoder

    def pairs() -> Iterator[tuple[Any, Any]]:
        for leaves, truth, size in _by_image(found):
            result = decoder(leaves, size)
            kind.check("that is scored", result)
            yield result, truth

    return scores_of(kind, pairs(), trained.labels)


def scores_of(kind: ResultKind, pairs: Iterable[tuple[Any, Any]], labels: Sequence[str]) -> dict[str, float]:
    """The scores of pairs of result and ground truth, by name, from the `score` of a result kind.

    Raises ExtensionError, which names the kind, for a kind without a score, for whatever its `score` raises, and for a
    score that is not a finite number; NoTruth, and what iterating over `pairs` raises, unchanged.
    """
    if kind.score is None:
        raise ExtensionError(f"results of kind '{kind.name}' cannot be scored")
    listed = list(pairs)
    try:
        scores: Any = extensions.loaded(kind.score)(listed, labels)
        values = {str(name): float(value) for name, value in scores.items() if isinstance(value, Real)}
    except NoTruth:
        raise
    except Exception as error:  # whatever a module of another package raises
        problem = f"{type(error).__name__}: {summarize_error(error)}"
        raise ExtensionError(f"`score` of result kind '{kind.name}' raised {problem}") from error
    if values.keys() != scores.keys() or not all(map(math.isfinite, values.values())):
        raise ExtensionError(f"`score` of result kind '{kind.name}' returned {scores}; allowed: finite numbers by name")
    return values


def operating_points(
    trained: Trainable, rows: Rows, network: nn.Module, batch_size: int = 64, progress: str = ""
) -> list[dict[str, float | None]]:
    """Precision and recall (of lanes: of pixels) at each of THRESHOLDS, and false detections per image; NMS is applied
    as in the node. For choosing parameter score_threshold. The decoder's thresholds are restored afterwards.
    """
    decoder: Any = trained.decoder
    before = decoder.score_threshold, decoder.iou_threshold
    decoder.score_threshold, decoder.iou_threshold = THRESHOLDS[0], _NODE_IOU
    detections, truths = [], []
    lanes = {threshold: LaneScore() for threshold in THRESHOLDS}
    try:
        for leaves, truth, size in _by_image(_run(trained, network, rows, batch_size, progress)):
            if isinstance(truth, Truth):
                detections.append(decoder(leaves, size))
                truths.append(truth)
                continue
            for decoder.score_threshold, score in lanes.items():
                score.add(decoder(leaves, size).mask, truth)
    finally:
        decoder.score_threshold, decoder.iou_threshold = before
    if truths:
        return box_points(detections, truths, len(trained.labels), THRESHOLDS)
    return [
        {"threshold": threshold, "precision": score.precision if score.predicted else None,
         "recall": score.recall if score.true else None, "false_per_image": None}
        for threshold, score in lanes.items()
    ]  # fmt: skip


def _by_image(found: Iterator[tuple[Any, Batch]]) -> Iterator[tuple[tuple[Tensor, ...], Any, tuple[int, int]]]:
    """For each image of `_run`: raw outputs on the CPU, each with a batch axis of 1; its truth, boxes or a mask (H, W)
    bool; and the size (height, width) that the truth refers to.
    """
    for outputs, batch in found:
        leaves = [leaf.float().cpu() for leaf in pytree.tree_leaves(outputs)]
        for k, image in enumerate(batch["image"]):
            truth: Truth | np.ndarray
            if "mask" in batch:
                truth = batch["mask"][k, 0].numpy() >= LANE_SHARE
            else:
                truth = truth_of(batch["boxes"][k].numpy(), batch["classes"][k].numpy())
            yield tuple(leaf[k : k + 1] for leaf in leaves), truth, (image.shape[1], image.shape[2])


class Served(nn.Module):
    """A network as served by the node: cut, folded, and run by a backend in its precision, image by image.

    forward(images (B, 3, h, w) float32 on the target's device) -> raw outputs of B images, float32: one tensor if the
    network returns one, otherwise a tuple of its tensors in the order of tuples and dicts.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int], target: Target) -> None:
        """network: on the CPU; not modified. size: (width, height) of its input. Raises what cutting or the backend
        raises.
        """
        super().__init__()
        width, height = size
        # Networks exported for one image are served unchanged.
        single = network.network if isinstance(network, SingleImages) else network
        self._chain = prepared(single, (torch.zeros(1, 3, height, width),), target)
        # Scoring uses the device of the first parameter; the stages do not expose theirs.
        self.device_marker = nn.Parameter(torch.empty(0, device=target.device), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        with torch.cuda.device_of(images):  # graphs launch on the current device; no effect on a CPU
            outputs = [self._run_single(image) for image in images.split(1)]
            leaves = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
        return leaves[0] if len(leaves) == 1 else leaves

    def _run_single(self, image: Tensor) -> tuple[Tensor, ...]:
        carried: tuple[Tensor, ...] = (image,)
        with torch.inference_mode():
            for stage in self._chain:
                carried = stage(carried)
        # Copy: captured graphs write all outputs to the same memory.
        return tuple(tensor.clone() for tensor in carried)
