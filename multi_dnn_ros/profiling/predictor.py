"""Predicts a layer's time under load from its arithmetic and memory traffic, and reports what it was not trained for.

A predictor is a JSON file of `multi-dnn profile learn`: the weights of a linear model, or the nodes of a small forest.
Reading it needs no further library and runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.layers import LayerWork
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.planning.layer_chain import trace_on_cpu
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
#: Weights of the linear model: arithmetic, bytes and launches, alone and beside and behind each kind of load.
_WEIGHTS = 3 * (1 + 2 * len(LOADS))
Positive = Annotated[float, Field(gt=0.0)]
Weights = Annotated[list[Annotated[float, Field(ge=0.0)]], Field(min_length=_WEIGHTS, max_length=_WEIGHTS)]


class ProfileError(ValueError):
    """A profile, table or predictor cannot be used; the message names the file, the error and what is expected."""


class FileModel(BaseModel):
    """Content of a file. Immutable; rejects unknown fields and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    weights: dict[str, Weights]

    def predict(self, questions: Sequence[Question], limits: Limits) -> Matrix:
        """Milliseconds; 0 for a kind of layer without weights."""
        weights = np.array([self.weights.get(work.kind, [0.0] * _WEIGHTS) for work, _ in questions])
        return np.asarray((linear_features(questions, limits) * weights).sum(axis=1))


class Tree(FileModel):
    """The arrays of a scikit-learn tree. left, right: children; -1 at a leaf. Features up to the threshold go left."""

    feature: list[int]
    threshold: list[float]
    left: list[int]
    right: list[int]
    value: list[float]

    def predict(self, rows: NDArray[np.float32]) -> Matrix:
        """(rows,) values."""
        feature, left, right = np.array(self.feature), np.array(self.left), np.array(self.right)
        node = np.zeros(len(rows), dtype=np.intp)
        for _ in feature:  # no path is longer
            lower = rows[np.arange(len(rows)), feature[node]] <= np.array(self.threshold)[node]
            below = np.where(lower, left[node], right[node])
            if (below < 0).all():
                break
            node = np.where(below < 0, node, below)
        return np.array(self.value)[node]


class Forest(FileModel):
    """Mean over trees of the logarithm of a layer's time divided by that at the device's limits."""

    regressor: Literal["forest"] = "forest"
    trees: list[Tree] = Field(min_length=1, max_length=1000)

    def predict(self, questions: Sequence[Question], limits: Limits) -> Matrix:
        """Milliseconds."""
        rows = tree_features(questions).astype(np.float32)  # the dtype of training
        logs = np.mean([tree.predict(rows) for tree in self.trees], axis=0)
        return np.asarray(floor_ms(questions, limits) * np.exp(logs))


class Predictor(FileModel):
    """Layer times on one device with one backend and precision.

    threads: of PyTorch on a CPU. spare: see Limits. ranges: by kind of layer, smallest and largest trained value of
    each size. loads: by kind, the highest trained level.
    """

    format: Literal["multi_dnn_ros predictor 4"] = "multi_dnn_ros predictor 4"
    device: str
    backend: str
    threads: int = Field(ge=0)
    spare: int = Field(ge=0)
    flops_per_s: Positive
    bytes_per_s: Positive
    ranges: dict[str, dict[str, tuple[float, float]]]
    loads: dict[str, int]
    model: Annotated[Linear | Forest, Field(discriminator="regressor")]

    def predict(self, works: Sequence[LayerWork], load: Load, target: Target) -> tuple[float, tuple[str, ...]]:
        """Milliseconds of these layers together under `load`, and the reasons why they cannot be predicted.

        target: where they run, which is checked.
        """
        timed = [work for work in works if work.kind != "view"]
        limits = Limits(self.flops_per_s, self.bytes_per_s, self.spare)
        ms = float(self.model.predict([(work, load) for work in timed], limits).sum()) if timed else 0.0
        pairs = ((self.device, target.device_name), (self.backend, target.served_by or target.backend))
        reasons = [f"it was trained on '{trained}'; this is '{here}'" for trained, here in pairs if trained != here]
        reasons += [reason for work in timed if (reason := self._other_layer(work))]
        if load.level > self.loads.get(load.kind, 0):
            reasons.append(f"a load of {load} exceeds the highest trained level, {self.loads.get(load.kind, 0)}")
        return ms, tuple(dict.fromkeys(reasons))

    def predict_dnn(self, dnn: Dnn, target: Target, beside: int) -> tuple[float, tuple[str, ...]]:
        """As predict(), for one image of a DNN, without preprocessing and decoding, while `beside` other DNNs run."""
        module = dnn.module.to_torch() if isinstance(dnn.module, OnnxNetwork) else dnn.module
        layers = trace_on_cpu(module, dnn.example_inputs()).layers(target.dtype)
        return self.predict([layer.work for layer in layers], Load("dnn", beside) if beside else Load(), target)

    def _other_layer(self, work: LayerWork) -> str:
        if work.kind not in self.ranges:
            return f"it was not trained for {work.kind} layers"
        for name, (low, high) in self.ranges[work.kind].items():
            value = getattr(work, name)
            if not low / _SLACK <= value <= high * _SLACK:
                what = name.replace("_", " ")
                return f"{work.kind} layer of {value:,} {what}; trained range: {low:,.0f} to {high:,.0f}"
        return ""


def trained_ranges(works: Sequence[LayerWork]) -> dict[str, dict[str, tuple[float, float]]]:
    """Ranges of sizes by kind of layer, for Predictor; without views, which are not predicted."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for work in works:
        for name in _SIZES if work.kind != "view" else ():
            value, ranges = getattr(work, name), found.setdefault(work.kind, {})
            low, high = ranges.get(name, (value, value))
            ranges[name] = min(low, value), max(high, value)
    return found


def write_predictor(path: Path, predictor: Predictor) -> None:
    """Write the predictor atomically."""
    write_text(path, predictor.model_dump_json() + "\n")


def read_predictor(path: Path) -> Predictor:
    """Read a file of `multi-dnn profile learn`. Raises ProfileError that names the file and the error.

    Only data is read; nothing in the file is executed.
    """
    try:
        return Predictor.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ProfileError(f"{path}: not a predictor of multi-dnn profile learn: {reason}") from None
