"""Predicts a layer's time from its arithmetic and memory traffic, and reports what it was not trained for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.graph.cut import NodeCost, cut_graph
from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.checked_file import read_checked
from multi_dnn_ros.planning.device import device_name
from multi_dnn_ros.planning.features import (
    LINEAR_FEATURES,
    TREE_FEATURES,
    Matrix,
    Question,
    ideal_ms,
    linear_features,
    tree_features,
)
from multi_dnn_ros.planning.file_model import FileModel
from multi_dnn_ros.planning.measure import Traced
from multi_dnn_ros.planning.profile import LayerShape, describe, node_costs
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample, Setting
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Factor by which a layer may lie outside the trained range of sizes.
_SLACK = 1.5
#: Shorter linear predictions are below the clock's resolution and not used as a base.
_MIN_BASE_MS = 1e-3
#: Factor by which a layer may differ, in each size, from the nearest trained layer. The ranges alone would admit
#: untrained combinations, such as many pixels with many channels.
_NEAR = 2.0
#: Sizes that characterize a layer, besides its kind.
_SIZES = ("flops", "bytes_read", "bytes_written", "pixels")
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0)]


class Linear(FileModel):
    """Milliseconds as a weighted sum of LINEAR_FEATURES. weights: by kind of layer, nonnegative."""

    regressor: Literal["linear"] = "linear"
    weights: dict[str, tuple[Annotated[float, Field(ge=0.0)], ...]]

    @model_validator(mode="after")
    def _check(self) -> Linear:
        for kind, weights in self.weights.items():
            if kind not in KINDS or len(weights) != len(LINEAR_FEATURES):
                raise ValueError(
                    f"weights of '{kind}': expected {len(LINEAR_FEATURES)} numbers and a known kind of layer"
                )
        return self

    def predict(self, questions: Sequence[Question]) -> Matrix:
        """Milliseconds of each layer; NaN for an untrained kind."""
        unknown = (float("nan"),) * len(LINEAR_FEATURES)
        weights = np.array([self.weights.get(counts.kind, unknown) for counts, _, _ in questions])
        times: Matrix = (linear_features(questions) * weights.reshape(len(questions), -1)).sum(axis=1)
        return times


class Tree(FileModel):
    """A binary tree with its nodes in depth-first order. left, right: children, -1 at leaves.

    Rows whose feature is at most the threshold go left.
    """

    feature: tuple[int, ...]
    threshold: tuple[Finite, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[Finite, ...]

    @model_validator(mode="after")
    def _check(self) -> Tree:
        nodes = len(self.feature)
        if not nodes or any(len(values) != nodes for values in (self.threshold, self.left, self.right, self.value)):
            raise ValueError("the lists of a tree differ in length, or are empty")
        for index, (feature, left, right) in enumerate(zip(self.feature, self.left, self.right, strict=True)):
            if (left, right) == (-1, -1):
                continue
            # Children come after their parent, so every traversal ends.
            if not (index < left < nodes and index < right < nodes):
                raise ValueError(f"node {index} of a tree has the children {left} and {right}")
            if not 0 <= feature < len(TREE_FEATURES) + len(KINDS):
                raise ValueError(f"node {index} of a tree has feature {feature}")
        return self

    def predict(self, rows: np.ndarray[Any, np.dtype[np.float32]]) -> Matrix:
        feature, threshold = np.array(self.feature), np.array(self.threshold)
        left, right = np.array(self.left), np.array(self.right)
        at = np.zeros(len(rows), dtype=np.intp)
        while (inside := left[at] >= 0).any():
            smaller = rows[np.arange(len(rows)), np.maximum(feature[at], 0)] <= threshold[at]
            at = np.where(inside, np.where(smaller, left[at], right[at]), at)
        return np.asarray(np.array(self.value)[at], dtype=np.float64)


class Trees(FileModel):
    """Gradient-boosted trees that predict the logarithm of a layer's time divided by its time at the device's limits.

    corrects: linear model whose predictions replace the times at the limits.
    """

    regressor: Literal["trees"] = "trees"
    corrects: Linear | None = None
    base: Finite
    rate: Finite
    trees: tuple[Tree, ...] = Field(max_length=5000)

    def predict(self, questions: Sequence[Question]) -> Matrix:
        """Milliseconds of each layer."""
        rows = tree_features(questions).astype(np.float32)  # the dtype of training
        logs = self.base + self.rate * sum((tree.predict(rows) for tree in self.trees), np.zeros(len(questions)))
        return np.asarray(base_ms(questions, self.corrects) * np.exp(np.clip(logs, -50.0, 50.0)))


Model = Annotated[Linear | Trees, Field(discriminator="regressor")]


def base_ms(questions: Sequence[Question], linear: Linear | None) -> Matrix:
    """Milliseconds that the trees scale: those of the linear model or, without it, those at the device's limits."""
    ideal = ideal_ms(questions)
    if linear is None:
        return ideal
    found = linear.predict(questions)
    return np.where(np.isfinite(found) & (found > _MIN_BASE_MS), found, ideal)


class TrainedRange(FileModel):
    """Trained layers of one kind. sizes: flops, bytes read, bytes written and pixels of each distinct layer."""

    samples: int = Field(ge=1)
    sizes: tuple[tuple[Size, Size, Size, Size], ...] = Field(min_length=1, max_length=100_000)


class Scores(FileModel):
    """Median absolute errors relative to the measured time, by method. held_out: what training did not see."""

    held_out: str
    layer: dict[str, float]
    whole: dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """ms: time of each layer. unpredicted: reasons not to use them: what training did not cover."""

    ms: tuple[float, ...]
    unpredicted: tuple[str, ...]


class Slice(FileModel):
    """The model for a share of a GPU's SMs, which is treated as another GPU."""

    flops_per_s: Positive
    bytes_per_s: Positive
    model: Model


class Predictor(FileModel):
    """Layer times on one device with one backend and precision.

    loads: by kind, the highest trained level. flops_per_s, bytes_per_s, model: for the whole device. slices: trained
    shares, by number of SMs. seen: trained layers, by kind.
    format: format 2 distinguishes a GPU's first other stream from further ones. Files of format 1 are read for CPUs,
    where this makes no difference.
    """

    format: Literal["multi_dnn_ros predictor 1", "multi_dnn_ros predictor 2"] = "multi_dnn_ros predictor 2"
    device: str
    backend: str
    precision: str
    threads: int = Field(ge=0)
    cores: int = Field(ge=0)
    flops_per_s: Positive
    bytes_per_s: Positive
    slices: dict[int, Slice] = Field(default_factory=dict)
    seen: dict[str, TrainedRange]
    loads: dict[str, int]
    model: Model
    scores: tuple[Scores, ...] = ()
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Predictor:
        if self.format.endswith(" 1") and not self.cores:
            raise ValueError(
                "format 1 counts a GPU's streams differently; run `multi-dnn profile learn` on its table again"
            )
        return self

    def predict(
        self, layers: Sequence[LayerShape], load: Load | None = None, target: Target | None = None
    ) -> Prediction:
        """Milliseconds of each layer under `load`; 0 for views. target: where the layers will run, which is checked."""
        load = load or Load()
        sms = target.sms if target is not None else 0
        share = self.slices.get(sms, self)
        setting = Setting(
            self.device, self.backend, self.precision, self.threads, self.cores, sms, share.flops_per_s,
            share.bytes_per_s,
        )  # fmt: skip
        counts = [LayerCounts.of(layer) for layer in layers]
        timed = [(index, layer) for index, layer in enumerate(counts) if layer.kind != "view"]
        times = [0.0] * len(layers)
        if timed:
            found = share.model.predict([(layer, setting, load) for _, layer in timed])
            for (index, _), ms in zip(timed, found, strict=True):
                times[index] = float(ms) if np.isfinite(ms) else 0.0
        unpredicted = [*self._other_target(target), *self._other_load(load)]
        unpredicted += dict.fromkeys(reason for _, layer in timed for reason in self._other_layer(layer))
        return Prediction(tuple(times), tuple(unpredicted))

    def _other_target(self, target: Target | None) -> list[str]:
        if target is None:
            return []
        reasons = []
        device = device_name(replace(target, sms=0))
        if device != self.device:
            reasons.append(f"it was trained on '{self.device}'; this is '{device}'")
        if target.sms and target.sms not in self.slices:
            seen = ", ".join(map(str, self.slices)) or "none"
            reasons.append(f"it was not trained for {target.sms} SMs; trained shares: {seen}")
        backend = target.served_by or target.backend
        if backend != self.backend:
            reasons.append(f"it was trained with backend {self.backend}; this is {backend}")
        return reasons

    def _other_load(self, load: Load) -> list[str]:
        if load.level and load.level > self.loads.get(load.kind, 0):
            return [f"a load of {load} exceeds the highest trained level, {self.loads.get(load.kind, 0)}"]
        return []

    def _other_layer(self, counts: LayerCounts) -> list[str]:
        seen = self.seen.get(counts.kind)
        if seen is None:
            return [f"it was not trained for {counts.kind} layers"]
        sizes = [getattr(counts, name) for name in _SIZES]
        for name, value, values in zip(_SIZES, sizes, zip(*seen.sizes, strict=True), strict=True):
            low, high = min(values), max(values)
            if not low / _SLACK <= value <= high * _SLACK:
                what = name.replace("_", " ")
                return [f"{counts.kind} layer of {value:,} {what}; trained range: {low:,} to {high:,}"]
        distance = np.abs(np.log1p(np.array(sizes)) - np.log1p(np.array(seen.sizes))).max(axis=1).min()
        if distance > np.log(_NEAR):
            listed = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in zip(_SIZES, sizes, strict=True))
            return [f"{counts.kind} layer of {listed}; no trained layer is within a factor of {_NEAR:g} of this"]
        return []


def predicted_costs(
    predictor: Predictor, traced: Traced, target: Target, *, measured: Any
) -> tuple[NodeCost, tuple[str, ...]]:
    """Seconds by operation, for graph.cut, and the reasons if they were measured instead of predicted.

    measured: called without arguments to measure the costs if they cannot be predicted; the reasons are logged.
    """
    layers = layers_of(traced)
    prediction = predictor.predict(layers, None, target)
    if prediction.unpredicted:
        log.warning(
            "layers are measured, because the predictor does not cover them: %s", "; ".join(prediction.unpredicted[:3])
        )
        costs: NodeCost = measured()
        return costs, prediction.unpredicted
    return node_costs(zip(layers, prediction.ms, strict=True), "the prediction"), ()


def layers_of(traced: Traced) -> list[LayerShape]:
    """The layers of a network, without running it."""
    (stage,) = cut_graph(traced.graph_module, 1, costs=lambda node: 1.0)
    return describe(traced, stage.layers)


def trained_range(samples: Sequence[Sample]) -> dict[str, TrainedRange]:
    """The layers in a set of samples, by kind; without views, which are not predicted."""
    seen = {}
    for kind in KINDS:
        if kind == "view":
            continue
        of_kind = [sample.counts for sample in samples if sample.counts.kind == kind]
        if of_kind:
            sizes = sorted({tuple(getattr(counts, name) for name in _SIZES) for counts in of_kind})
            seen[kind] = TrainedRange(samples=len(of_kind), sizes=tuple(sizes))
    return seen


def write_predictor(path: Path, predictor: Predictor) -> None:
    """Write the predictor atomically."""
    write_text(path, predictor.model_dump_json(indent=None) + "\n")


def read_predictor(path: Path) -> Predictor:
    """Read a file written by `multi-dnn profile learn`. Raises ProfileError that names the file and the error."""
    return read_checked(path, Predictor, "predictor", "multi-dnn profile learn")
