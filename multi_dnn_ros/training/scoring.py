"""Runs a network on the rows of a data set, or a configured DNN on whole images, and scores the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
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
from multi_dnn_ros.models.dnn import Dnn, Output
from multi_dnn_ros.planning.timing import Target, prepared
from multi_dnn_ros.training.data import Data, Task, open_data
from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError, kind_and_path
from multi_dnn_ros.training.losses import logits_of
from multi_dnn_ros.training.metrics import LaneScore, NoTruth, Truth, box_points
from multi_dnn_ros.training.samples import Batch, Rows, Sample, truth_of
from multi_dnn_ros.training.trainable import SingleImages, Trainable
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind
from multi_dnn_ros.vision.results import OutputError, result_name, results_by_name

#: The deciding score by task; larger is better.
MAIN: dict[Task, str] = {"classes": "top1", "boxes": "map50", "lanes": "f1"}
#: Minimum value of a lane pixel in a true mask (0..255): two fifths.
LANE_SHARE = 102
#: Score thresholds at which precision and recall are listed.
THRESHOLDS = tuple(round(0.05 * k, 2) for k in range(1, 20))
#: The node's default NMS threshold.
_NODE_IOU = 0.5
#: Average precision needs the whole curve, not only what the node would publish.
_MIN_SCORE = 0.01


def device_of(network: nn.Module) -> torch.device:
    """The device of a network's weights or buffers; the CPU if it has neither."""
    return next(chain(network.parameters(), network.buffers()), torch.empty(0)).device


def score_rows(
    trained: Trainable, rows: Rows, network: nn.Module | None = None, batch_size: int = 64, progress: str = ""
) -> dict[str, float]:
    """Scores by name: top1 and top5; or map50, map50 of each class, and map; or f1, precision and recall; or what the
    result kind of another package returns.

    network: in eval mode, run instead of the network of `trained`. progress: title of the bar. Boxes and lanes are
    compared in pixels of its input, which preserves overlaps. Raises NoTruth.
    """
    found = _run(trained, trained.network if network is None else network, rows, batch_size, progress)
    if trained.kind is None or trained.decoder is None:
        ranked = [
            logits_of(outputs).float().cpu().topk(min(5, outputs.shape[1]), dim=1).indices == batch["label"][:, None]
            for outputs, batch in found
        ]
        hits = torch.cat(ranked).double()
        return {"top1": float(hits[:, 0].mean()), "top5": float(hits.amax(dim=1).mean())}
    pairs = [(trained.decoder(leaves, size), truth) for leaves, truth, size in _by_image(found)]
    return _scores(trained.kind, pairs, trained.labels)


def _scores(kind: ResultKind, pairs: Sequence[tuple[Any, Any]], labels: Sequence[str]) -> dict[str, float]:
    if kind.score is None:
        raise ExtensionError(f"results of kind '{kind.name}' cannot be scored")
    return dict(extensions.loaded(kind.score)(pairs, labels))


def operating_points(
    trained: Trainable, rows: Rows, network: nn.Module, batch_size: int = 64, progress: str = ""
) -> list[dict[str, float | None]]:
    """Precision and recall (of lanes: of pixels) at each of THRESHOLDS, and false detections per image; NMS is applied
    as in the node. For choosing parameter score_threshold. The decoder's thresholds are restored afterwards.
    """
    decoder: Any = trained.decoder
    before = decoder.score_threshold, decoder.iou_threshold
    decoder.score_threshold, decoder.iou_threshold = THRESHOLDS[0], _NODE_IOU
    detections: list[tuple[Any, Truth]] = []
    lanes = {threshold: LaneScore() for threshold in THRESHOLDS}
    try:
        for leaves, truth, size in _by_image(_run(trained, network, rows, batch_size, progress)):
            if isinstance(truth, Truth):
                detections.append((decoder(leaves, size), truth))
                continue
            for decoder.score_threshold, score in lanes.items():
                score.add(decoder(leaves, size).mask, truth)
    finally:
        decoder.score_threshold, decoder.iou_threshold = before
    if detections:
        return box_points(detections, len(trained.labels), THRESHOLDS)
    return [
        {"threshold": threshold, "precision": score.scores()["precision"] if score.predicted else None,
         "recall": score.scores()["recall"] if score.true else None, "false_per_image": None}
        for threshold, score in lanes.items()
    ]  # fmt: skip


@torch.no_grad()
def _run(
    trained: Trainable, network: nn.Module, rows: Rows, batch_size: int, progress: str
) -> Iterator[tuple[Any, Batch]]:
    """Yield (raw outputs, batch), in the order of the rows, on the network's device."""
    device = device_of(network)
    with tqdm(total=len(rows), desc=progress, unit="image", disable=None if progress else True) as bar:
        for batch in DataLoader(rows, batch_size):
            image = batch["image"].to(device)
            yield network(trained.inputs(image.float() / 255.0)), batch
            bar.update(len(image))


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


# --- configured DNNs --------------------------------------------------------------------------------------------------


def open_images(name: str, dnn: Dnn, scenes: int) -> Data:
    """The data ``KIND:PATH``, with images in full size and the true boxes of the classes of a DNN's results.

    scenes: see open_data. Raises DatasetError for a kind without images of a camera, and for errors in the data.
    """
    kind = kind_and_path(name)[0]
    kinds = [known for known, spec in DATA_KINDS.items() if spec.tasks != ("classes",)]
    if kind not in kinds:
        raise DatasetError(f"data '{name}': kind '{kind}' has no images of a camera; allowed: {', '.join(kinds)}")
    labels = [each for output in dnn.outputs.values() if _truth_kind(output) == "boxes" for each in _reported(output)]
    # The generated road has both boxes and lanes: then the boxes are of the classes that it shows.
    wanted = () if len(DATA_KINDS[kind].tasks) > 1 else tuple(dict.fromkeys(labels))
    return open_data(name, None, Preprocess(640, 480), wanted, scenes)


def score_dnn(dnn: Dnn, data: Data, rows: Rows, device: torch.device) -> dict[str, dict[str, float] | str]:
    """Scores of each result by its name on `rows` of `data`, in pixels of the camera's image, or the reason why there
    are none.

    The network runs once per image, in float32, with the crop and the thresholds of the configuration, except that
    detectors report everything with a score of at least 0.01, as average precision requires. True boxes of classes that
    parameter `keep` leaves out do not count. Raises OutputError, which names the image, if the network or a decoder
    fails.
    """
    truths = DATA_KINDS[kind_and_path(data.name)[0]].tasks
    scores: dict[str, dict[str, float] | str] = {}
    pairs: dict[str, list[tuple[Any, Any]]] = {}
    names = {result_name(dnn.name, name): output for name, output in dnn.outputs.items()}
    for name, output in names.items():
        if RESULT_KINDS.get(output.result_kind).score is None:
            scores[name] = f"results of kind '{output.result_kind}' cannot be scored"
        elif _truth_kind(output) not in truths:
            scores[name] = f"data '{data.name}' has no {_truth_kind(output)}"
        else:
            pairs[name] = []
            if _truth_kind(output) == "boxes":
                output.decoder.score_threshold = _MIN_SCORE
    for sample, found in _results(dnn, data.name, rows, device) if pairs else ():
        for name, listed in pairs.items():
            listed.append((found[name], _truth(sample, names[name], data.labels)))
    for name, listed in pairs.items():
        try:
            scores[name] = _scores(RESULT_KINDS.get(names[name].result_kind), listed, names[name].labels)
        except NoTruth as error:
            scores[name] = f"data '{data.name}': {error}"
    return {name: scores[name] for name in names}


def _results(dnn: Dnn, name: str, rows: Rows, device: torch.device) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
    module = dnn.module.to(device)
    for item in tqdm(rows.items, f"{dnn.name} on {name}", unit="image"):
        sample = item.load()
        height, width = sample.image.shape[:2]
        try:
            with torch.inference_mode():
                outputs = pytree.tree_leaves(module(*dnn.inputs(torch.from_numpy(sample.image).to(device))))
            tensors = [part.float().cpu() for part in outputs if isinstance(part, torch.Tensor)]
            found = results_by_name(dnn.name, dnn.results(tensors, (height, width)))
        except (OutputError, RuntimeError, ValueError) as error:  # such as an image that `crop` does not fit
            raise OutputError(f"{item.name} ({width} x {height}): {summarize_error(error)}") from None
        yield sample, found


def _truth_kind(output: Output) -> str:
    return RESULT_KINDS.get(output.result_kind).truth


def _reported(output: Output) -> tuple[str, ...]:
    """Class names that the result can contain."""
    kept = output.decoder.kept
    return tuple(output.labels[number] for number in kept) if kept else output.labels


def _truth(sample: Sample, output: Output, labels: tuple[str, ...]) -> Any:
    if sample.boxes is None or sample.classes is None or _truth_kind(output) == "lanes":
        return sample.mask
    reported = _reported(output)
    names = [name if name in reported else "" for name in labels]
    return truth_of(sample.boxes, sample.classes).among(names, output.labels)
