"""Predicts a layer's time under load from its arithmetic and memory traffic, and reports what it was not trained for.

A predictor is a JSON file of `multi-dnn profile learn`: the weights of a linear model, or the nodes of a small forest.
Reading it needs no further library and runs no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.models.layers import Layer, LayerWork
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.planning.checked_file import read_checked
from multi_dnn_ros.planning.file_model import FileModel
from multi_dnn_ros.planning.timing import Target

Matrix = NDArray[np.float64]
LoadKind = Literal["none", "compute", "memory", "dnn"]
LOADS: tuple[LoadKind, ...] = ("compute", "memory", "dnn")
#: Features of the forest and of the decision tree, in order; all are known before a layer runs.
TREE_FEATURES = (
    "arithmetic", "parameters", "bytes read", "bytes written", "intensity", "window", "groups", "input channels",
    "output channels", "pixels", "load level", *(f"{load} load" for load in LOADS),
)  # fmt: skip
#: Shortest time that is told apart from none; keeps the forest's target finite.
_FLOOR_MS = 1e-3
#: Factor by which a layer may lie outside the trained range of a size.
_SLACK = 1.5
_SIZES = ("flops", "bytes_read", "bytes_written", "pixels")
Positive = Annotated[float, Field(gt=0.0)]


@dataclass(frozen=True)
class Load:
    """Background load. level: number of threads on a CPU or of streams on a GPU; 0 if kind is "none"."""

    kind: LoadKind = "none"
    level: int = 0

    def __str__(self) -> str:
        return f"{self.level} x {self.kind}" if self.level else "alone"


@dataclass(frozen=True)
class Limits:
    """What layers are measured against. flops_per_s, bytes_per_s: of the device. spare: number of load threads or
    streams that can run beside the layer; each further one makes it wait.
    """

    flops_per_s: float
    bytes_per_s: float
    spare: int

    def ideal_ms(self, work: LayerWork) -> tuple[float, float]:
        """Milliseconds of the layer's arithmetic and of its memory traffic at the device's limits."""
        return 1e3 * work.flops / self.flops_per_s, 1e3 * work.moved / self.bytes_per_s


#: A layer under a load.
Question = tuple[LayerWork, Load]


def linear_features(questions: Sequence[Question], limits: Limits) -> Matrix:
    """(questions, 21) nonnegative: arithmetic and bytes at the limits and one launch, each times 1 and, for each kind
    of load, the loads beside the layer and those that it waits for.
    """
    rows = []
    for work, load in questions:
        factors = [1.0]
        for kind in LOADS:
            level = load.level if load.kind == kind else 0
            factors += [min(level, limits.spare), max(0, level - limits.spare)]
        rows.append(np.outer(factors, (*limits.ideal_ms(work), 1.0)).ravel())
    return np.array(rows).reshape(len(rows), -1)


def tree_features(questions: Sequence[Question], *, kinds: bool = True) -> Matrix:
    """(questions, TREE_FEATURES), followed by a column for each kind of layer unless `kinds` is False."""
    rows = [
        [work.flops, work.parameters, work.bytes_read, work.bytes_written, work.intensity, work.window, work.groups,
         work.channels_in, work.channels_out, work.pixels, load.level, *(load.kind == kind for kind in LOADS),
         *(work.kind == kind for kind in (KINDS if kinds else ()))]
        for work, load in questions
    ]  # fmt: skip
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1)


def floor_ms(questions: Sequence[Question], limits: Limits) -> Matrix:
    """(questions,) milliseconds at the device's limits; the forest predicts the logarithm of the ratio to these."""
    return np.array([sum(limits.ideal_ms(work)) + _FLOOR_MS for work, _ in questions])


class Linear(FileModel):
    """Milliseconds as a weighted sum of linear_features. weights: by kind of layer."""

    regressor: Literal["linear"] = "linear"
    weights: dict[str, list[Annotated[float, Field(ge=0.0)]]]

    @model_validator(mode="after")
    def _check(self) -> Linear:
        count = 3 * (1 + 2 * len(LOADS))
        wrong = [kind for kind, weights in self.weights.items() if len(weights) != count]
        if wrong:
            raise ValueError(f"weights of {wrong[0]}: expected {count} numbers")
        return self

    def predict(self, questions: Sequence[Question], limits: Limits) -> Matrix:
        """Milliseconds; 0 for a kind of layer without weights."""
        none = [0.0] * (3 * (1 + 2 * len(LOADS)))
        weights = np.array([self.weights.get(work.kind, none) for work, _ in questions])
        return np.asarray((linear_features(questions, limits) * weights).sum(axis=1))


class Tree(FileModel):
    """The arrays of a scikit-learn tree. left, right: children; -1 at a leaf. Features up to the threshold go left."""

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]

    @model_validator(mode="after")
    def _check(self) -> Tree:
        count = len(self.feature)
        if {len(self.threshold), len(self.left), len(self.right), len(self.value)} != {count}:
            raise ValueError("the lists of a tree differ in length")
        for node, (feature, left, right) in enumerate(zip(self.feature, self.left, self.right, strict=True)):
            inner = node < left < count and node < right < count  # children come later, so that every walk ends
            if (left, right) != (-1, -1) and not (inner and 0 <= feature < len(TREE_FEATURES) + len(KINDS)):
                raise ValueError(f"node {node} of a tree has the feature {feature} and the children {left}, {right}")
        return self


class Forest(FileModel):
    """Mean over trees of the logarithm of a layer's time divided by that at the device's limits."""

    regressor: Literal["forest"] = "forest"
    trees: list[Tree] = Field(min_length=1, max_length=1000)

    def predict(self, questions: Sequence[Question], limits: Limits) -> Matrix:
        """Milliseconds."""
        rows = tree_features(questions).astype(np.float32)  # the dtype of training
        logs = np.mean([[_leaf(tree, row) for row in rows] for tree in self.trees], axis=0)
        return np.asarray(floor_ms(questions, limits) * np.exp(logs))


class Scores(FileModel):
    """Median absolute errors relative to the measured time, by method. held_out: what training did not see."""

    held_out: str
    layer: dict[str, float]
    network: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """ms: time of each layer. unpredicted: reasons not to use them: what training did not cover."""

    ms: tuple[float, ...]
    unpredicted: tuple[str, ...]


class Predictor(FileModel):
    """Layer times on one device with one backend and precision.

    threads: of PyTorch on a CPU. spare: see Limits. ranges: by kind of layer, smallest and largest trained value of
    each size. loads: by kind, the highest trained level.
    """

    format: Literal["multi_dnn_ros predictor 3"] = "multi_dnn_ros predictor 3"
    device: str
    backend: str
    threads: int = Field(ge=0)
    spare: int = Field(ge=0)
    flops_per_s: Positive
    bytes_per_s: Positive
    ranges: dict[str, dict[str, tuple[float, float]]]
    loads: dict[str, int]
    model: Annotated[Linear | Forest, Field(discriminator="regressor")]
    scores: list[Scores] = Field(default_factory=list)
    provenance: dict[str, Any] = Field(default_factory=dict)

    def predict(self, layers: Sequence[Layer], load: Load | None = None, target: Target | None = None) -> Prediction:
        """Milliseconds of each layer under `load`; 0 for views. target: where they will run, which is checked."""
        load = load or Load()
        timed = [(index, layer.work) for index, layer in enumerate(layers) if layer.work.kind != "view"]
        times = [0.0] * len(layers)
        if timed:
            limits = Limits(self.flops_per_s, self.bytes_per_s, self.spare)
            found = self.model.predict([(work, load) for _, work in timed], limits)
            for (index, _), ms in zip(timed, found, strict=True):
                times[index] = float(ms)
        reasons = [*self._other_target(target), *(reason for _, work in timed for reason in self._other_layer(work))]
        if load.level > self.loads.get(load.kind, 0):
            reasons.append(f"a load of {load} exceeds the highest trained level, {self.loads.get(load.kind, 0)}")
        return Prediction(tuple(times), tuple(dict.fromkeys(reasons)))

    def _other_target(self, target: Target | None) -> list[str]:
        if target is None:
            return []
        backend = target.served_by or target.backend
        pairs = ((self.device, target.device_name), (self.backend, backend))
        return [f"it was trained on '{trained}'; this is '{here}'" for trained, here in pairs if trained != here]

    def _other_layer(self, work: LayerWork) -> list[str]:
        if work.kind not in self.ranges:
            return [f"it was not trained for {work.kind} layers"]
        for name, (low, high) in self.ranges[work.kind].items():
            value = getattr(work, name)
            if not low / _SLACK <= value <= high * _SLACK:
                what = name.replace("_", " ")
                return [f"{work.kind} layer of {value:,} {what}; trained range: {low:,.0f} to {high:,.0f}"]
        return []


def trained_ranges(works: Sequence[LayerWork]) -> dict[str, dict[str, tuple[float, float]]]:
    """Ranges of sizes by kind of layer, for Predictor; without views, which are not predicted."""
    kinds: Mapping[str, list[LayerWork]] = {kind: [work for work in works if work.kind == kind] for kind in KINDS}
    return {
        kind: {name: (min(values), max(values)) for name in _SIZES if (values := [getattr(w, name) for w in of_kind])}
        for kind, of_kind in kinds.items()
        if of_kind and kind != "view"
    }


def write_predictor(path: Path, predictor: Predictor) -> None:
    """Write the predictor atomically."""
    write_text(path, predictor.model_dump_json() + "\n")


def read_predictor(path: Path) -> Predictor:
    """Read a file written by `multi-dnn profile learn`. Raises ProfileError that names the file and the error."""
    return read_checked(path, Predictor, "predictor", "multi-dnn profile learn")


def _leaf(tree: Tree, row: NDArray[np.float32]) -> float:
    node = 0
    while tree.left[node] >= 0:
        node = tree.left[node] if row[tree.feature[node]] <= tree.threshold[node] else tree.right[node]
    return tree.value[node]
