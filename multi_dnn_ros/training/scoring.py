"""Runs a network on the rows of a data set, and scores its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from multi_dnn_ros.common import extensions
from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.training.batches import Inputs
from multi_dnn_ros.training.classification import Accuracy, logits_of
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.kind_scores import scores_of
from multi_dnn_ros.training.samples import Batch, Rows, truth_of
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind

#: The deciding score by task; larger is better.
MAIN: dict[Task, str] = {"classes": "top1", "boxes": "map50", "lanes": "f1"}
#: Minimum value of a lane pixel in a true mask (0..255): two fifths.
LANE_SHARE = 102


class _Read(Dataset[Batch]):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Batch:
        return self.rows.read(index)


def device_of(network: nn.Module) -> torch.device:
    """The device of a network's weights or buffers; the CPU if it has neither."""
    return next(chain(network.parameters(), network.buffers()), torch.empty(0)).device


@torch.no_grad()
def run_on_rows(
    network: nn.Module, rows: Rows, inputs: Inputs, batch_size: int = 64, progress: str = ""
) -> Iterator[tuple[object, Batch]]:
    """Yield (raw outputs, batch), in the order of the rows, on the network's device. progress: title of the bar."""
    device = device_of(network)
    with tqdm(total=len(rows), desc=progress, unit="image", disable=None if progress else True) as bar:
        for batch in DataLoader(_Read(rows), batch_size):
            image = batch["image"].to(device)
            yield network(inputs(image.float() / 255.0)), batch
            bar.update(len(image))


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
            accuracy.add(logits_of(outputs).cpu(), batch["label"])
        return accuracy.scores()
    assert decoder is not None
    kind = _kind_of(task) if kind is None else kind

    def pairs() -> Iterator[tuple[object, object]]:
        for leaves, truth, size in by_image(found):
            result = decoder(leaves, size)
            kind.check("that is scored", result)
            yield result, truth

    return scores_of(kind, pairs(), labels)


def by_image(
    found: Iterator[tuple[object, Batch]],
) -> Iterator[tuple[tuple[Tensor, ...], object, tuple[int, int]]]:
    """For each image of `run_on_rows`: raw outputs on the CPU, each with a batch axis of 1; its truth, boxes or a mask
    (H, W) bool; and the size (height, width) that the truth refers to.
    """
    for outputs, batch in found:
        leaves = [leaf.float().cpu() for leaf in pytree.tree_leaves(outputs)]
        for k, image in enumerate(batch["image"]):
            truth: object
            if "mask" in batch:
                truth = batch["mask"][k, 0].numpy() >= LANE_SHARE
            else:
                truth = truth_of(batch["boxes"][k].numpy(), batch["classes"][k].numpy())
            yield tuple(leaf[k : k + 1] for leaf in leaves), truth, (image.shape[1], image.shape[2])


def _kind_of(task: Task) -> ResultKind:
    """This package's result kind for the truth of the task."""
    kinds = [RESULT_KINDS.get(name) for name in extensions.OWN[extensions.RESULT_KINDS]]
    return next(kind for kind in kinds if kind.truth == task)
