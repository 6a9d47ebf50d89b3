"""Scores of each result of a configured DNN, in pixels of the camera's image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from tqdm import tqdm

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.dnn import Dnn, Output
from multi_dnn_ros.training.data import Data, DataRequest, open_data
from multi_dnn_ros.training.data_kinds import DATA_KINDS, DatasetError, kind_and_path
from multi_dnn_ros.training.metrics import NoTruth
from multi_dnn_ros.training.samples import Rows, Sample, truth_of
from multi_dnn_ros.training.scoring import scores_of
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import OutputError, result_name, results_by_name

#: Average precision needs the whole curve, not only what the node would publish.
_MIN_SCORE = 0.01


def scored_labels(dnn: Dnn) -> tuple[str, ...]:
    """Class names of all results that are compared with true boxes, each once."""
    found = [name for output in dnn.outputs.values() if _truth_kind(output) == "boxes" for name in _reported(output)]
    return tuple(dict.fromkeys(found))


def open_images(name: str, labels: tuple[str, ...], scenes: int) -> Data:
    """The data ``KIND:PATH``, whose images are used in full size. labels: classes whose true boxes are wanted. scenes:
    see DataRequest. Raises DatasetError for a kind without images of a camera, and for errors in the data.
    """
    kind = kind_and_path(name)[0]
    kinds = [known for known, spec in DATA_KINDS.items() if spec.tasks != ("classes",)]
    if kind not in kinds:
        raise DatasetError(f"data '{name}': kind '{kind}' has no images of a camera; allowed: {', '.join(kinds)}")
    both = len(DATA_KINDS[kind].tasks) > 1  # then the boxes are of the classes that the data shows
    return open_data(name, DataRequest(None, Preprocess(640, 480), () if both else labels, scenes))


def score_dnn(dnn: Dnn, data: Data, rows: Rows, device: torch.device) -> dict[str, dict[str, float] | str]:
    """Scores of each result by its name on `rows` of `data`, or the reason why there are none.

    The network runs once per image, in float32, with the crop and the thresholds of the configuration,
    except that detectors report everything with a score of at least 0.01, as average precision requires. True boxes of
    classes that parameter `keep` leaves out do not count. Raises OutputError, which names the image, if the network or
    a decoder fails.
    """
    truths = DATA_KINDS[kind_and_path(data.name)[0]].tasks
    names = {result_name(dnn.name, name): output for name, output in dnn.outputs.items()}
    scores: dict[str, dict[str, float] | str] = {}
    wanted: dict[str, list[tuple[Any, Any]]] = {}
    for name, output in names.items():
        truth = _truth_kind(output)
        if not truth or RESULT_KINDS.get(output.result_kind).score is None:
            scores[name] = f"results of kind '{output.result_kind}' cannot be scored"
        elif truth not in truths:
            scores[name] = f"data '{data.name}' has no {truth}"
        else:
            wanted[name] = []
            if truth == "boxes":
                output.decoder.score_threshold = _MIN_SCORE
    for sample, found in _results(dnn, data.name, rows, device) if wanted else ():
        for name, pairs in wanted.items():
            pairs.append((found[name], _truth(sample, names[name], data.labels)))
    for name, pairs in wanted.items():
        try:
            scores[name] = scores_of(RESULT_KINDS.get(names[name].result_kind), pairs, names[name].labels)
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
    if _truth_kind(output) == "lanes":
        return sample.mask
    assert sample.boxes is not None  # the data has boxes
    assert sample.classes is not None
    reported = _reported(output)
    return truth_of(sample.boxes, sample.classes).among([name if name in reported else "" for name in labels],
                                                        output.labels)  # fmt: skip
