"""Batches, loss and score of a network and its data, for the training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from multi_dnn_ros.common import extensions
from multi_dnn_ros.training.batches import (
    ArrayBatches,
    Augment,
    Batch,
    FileBatches,
    Inputs,
    augment_classes,
    augment_detection,
    augment_lanes,
    read_ahead,
)
from multi_dnn_ros.training.classification import Accuracy, logits_of
from multi_dnn_ros.training.data import ArrayRows, Rows, Task
from multi_dnn_ros.training.datasets import CROWD, IGNORED
from multi_dnn_ros.training.kind_scores import scores_of
from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.vision.decoders.base import Decoder
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind

#: The deciding score by task; larger is better.
MAIN: dict[Task, str] = {"classes": "top1", "boxes": "map50", "lanes": "f1"}
_AUGMENT: dict[Task, Augment] = {"boxes": augment_detection, "lanes": augment_lanes}
#: Minimum value of a lane pixel in a true mask (0..255): two fifths.
LANE_SHARE = 102
#: Minimum share of each epoch that a small set gets.
_MIN_SHARE = 0.2


def make_batches(
    sets: Sequence[Rows], task: Task, inputs: Inputs, batch_size: int, seed: int, device: torch.device,
    mix: float = 0.0, augment: Augment | None = None,
) -> ArrayBatches | FileBatches:  # fmt: skip
    """Augmented batches of all sets; a small set is repeated until it makes up _MIN_SHARE of each epoch.

    Sets in memory are copied to the device, other sets are read during training. mix: for classes, see augment_classes.
    augment: the augmentation; None: that of the task.
    """
    if augment is None:
        augment = partial(augment_classes, mix=mix) if task == "classes" else _AUGMENT[task]
    counts = [len(rows) for rows in sets]
    largest = max(counts)
    times = [max(1, round(_MIN_SHARE / (1 - _MIN_SHARE) * largest / count)) for count in counts]
    repeats = torch.cat([torch.full((count,), time) for count, time in zip(counts, times, strict=True)])
    if all(isinstance(rows, ArrayRows) for rows in sets):
        parts = [rows.arrays for rows in sets if isinstance(rows, ArrayRows)]
        arrays = {name: torch.cat([part[name] for part in parts]).to(device) for name in parts[0]}
        return ArrayBatches(arrays, batch_size, seed, augment, repeats, inputs)
    order = torch.arange(sum(counts)).repeat_interleave(repeats).tolist()
    positions: list[tuple[Rows, int]] = [(rows, k) for rows in sets for k in range(len(rows))]

    def read(index: int) -> Batch:
        part, k = positions[order[index]]
        row: Batch = part.read(k)
        return row

    return FileBatches(read, len(order), batch_size, seed, device, augment, inputs)


@torch.no_grad()
def run_on_rows(
    network: nn.Module, rows: Rows, inputs: Inputs, batch_size: int = 64, progress: str = ""
) -> Iterator[tuple[object, Batch]]:
    """Yield (raw outputs, batch), in the order of the rows, on the network's device. progress: title of the bar."""
    device = next(network.parameters()).device
    groups = [range(k, min(k + batch_size, len(rows))) for k in range(0, len(rows), batch_size)]
    if isinstance(rows, ArrayRows):
        arrays = rows.arrays
        batches: Iterator[Batch] = (
            {name: array[group.start : group.stop].to(device) for name, array in arrays.items()} for group in groups
        )
    else:
        batches = read_ahead(rows.read, groups, device)
    bar = tqdm(total=len(rows), desc=progress, unit="image", disable=None if progress else True)
    for batch in batches:
        yield network(inputs(batch["image"].float() / 255.0)), batch
        bar.update(len(batch["image"]))
    bar.close()


def score_rows(
    network: nn.Module,
    task: Task,
    rows: Rows,
    inputs: Inputs,
    decoder: Decoder | None,
    labels: Sequence[str],
    batch_size: int = 64,
    progress: str = "",
    kind: ResultKind | None = None,
) -> dict[str, float]:
    """Scores by name: top1 and top5; or map50, map50 of each class, and map; or f1, precision and recall.

    network: in eval mode. kind: kind of the decoder's results; None: that of this package's decoder for the task.

    Boxes and lanes are compared in pixels of the network's input, which preserves overlaps.
    """
    found = run_on_rows(network, rows, inputs, batch_size, progress)
    if task == "classes":
        accuracy = Accuracy()
        for outputs, batch in found:
            accuracy.add(logits_of(outputs), batch["label"])
        return accuracy.scores()
    assert decoder is not None
    kind = _kind_of(task) if kind is None else kind

    def pairs() -> Iterator[tuple[object, object]]:
        for outputs, batch in found:
            for k, leaves in enumerate(_by_image(outputs)):
                truth, size = _truth(task, batch, k)
                result = decoder(leaves, size)
                kind.check("that is scored", result)
                yield result, truth

    return scores_of(kind, pairs(), labels)


def _kind_of(task: Task) -> ResultKind:
    """This package's result kind for the truth of the task."""
    kinds = [RESULT_KINDS.get(name) for name in extensions.OWN[extensions.RESULT_KINDS]]
    return next(kind for kind in kinds if kind.truth == task)


def _truth(task: Task, batch: Batch, k: int) -> tuple[object, tuple[int, int]]:
    """The truth of image k of a batch, and the image size (H, W) that it refers to."""
    if task == "lanes":
        mask = batch["mask"][k, 0].cpu().numpy()
        return mask >= LANE_SHARE, mask.shape
    height, width = batch["image"].shape[2:]
    return truth_of(batch["boxes"][k].cpu().numpy(), batch["classes"][k].cpu().numpy()), (height, width)


def truth_of(boxes: npt.NDArray[np.float32], classes: npt.NDArray[np.int64]) -> Truth:
    """The truth from boxes (N, 4) float32 and class numbers (N,) int64, which may be NO_BOX, IGNORED or CROWD - k."""
    ignored = classes <= IGNORED
    # CROWD - IGNORED is -1: no crowd.
    return Truth(boxes[classes >= 0], classes[classes >= 0], boxes[ignored], CROWD - classes[ignored])


def _by_image(outputs: object) -> Iterator[tuple[Tensor, ...]]:
    """Split raw outputs of a batch into single images, each with a batch axis of 1, on the CPU."""
    leaves = [leaf.float().cpu() for leaf in pytree.tree_leaves(outputs)]
    for k in range(len(leaves[0])):
        yield tuple(leaf[k : k + 1] for leaf in leaves)
