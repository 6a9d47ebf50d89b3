"""Which features decide the time of each kind of layer: importances from decision trees, as text and as a plot.

After Yoo, Jeong, Moon 2020 (see learn.py): one regression tree per kind of layer. A feature's importance is its total
reduction of the variance of the times over all splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure
from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.features import TREE_FEATURES, tree_features
from multi_dnn_ros.planning.samples import LOAD_KINDS, Load, Sample, known_layers

#: Kinds of layers with fewer samples are left out.
_MIN_SAMPLES = 20
_DEPTH, _MIN_LEAF_SAMPLES = 8, 3
#: Maximum number of features that the text names.
_MAX_NAMED = 3
#: Name under which the importances of :data:`_LOAD_FEATURES` are added up.
LOAD = "load"
_LOAD_FEATURES = ("load level", "oversubscription", "compute load", "memory load", "DNN load")


@dataclass(frozen=True)
class Importance:
    """Importances for one kind of layer. shares: (feature, share of the explained variance of log time), descending;
    the shares add up to 1.

    explained: R^2 of the tree on held-out models, negative if it is worse than the mean; None if there is only one
    model. slowdown: (highest load of a kind, median ratio of a layer's time under it to its time alone); empty without
    load.
    """

    kind: str
    samples: int
    shares: tuple[tuple[str, float], ...]
    explained: float | None
    slowdown: tuple[tuple[str, float], ...]


def importances(samples: Sequence[Sample], seed: int = 0) -> list[Importance]:
    """One entry per kind of layer with enough samples, the costliest kind first."""
    rows = known_layers(samples)
    found = []
    for kind in KINDS:
        of_kind = [sample for sample in rows if sample.counts.kind == kind]
        if len(of_kind) >= _MIN_SAMPLES:
            found.append((sum(sample.ms for sample in of_kind), _importance(kind, of_kind, seed)))
    return [importance for _, importance in sorted(found, key=lambda entry: -entry[0])]


def explain(importance: Importance) -> str:
    """Describe an importance in one or two sentences."""
    named = [f"{name} ({share:.0%})" for name, share in importance.shares[:_MAX_NAMED] if share >= 0.03]
    kind = importance.kind[0].upper() + importance.kind[1:]
    if not named:
        return f"{kind}: {importance.samples} samples; no feature explains the time."
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    text = f"{kind}: the time depends mainly on {listed}"
    if importance.explained is None:
        text += ", as measured on one model only"
    elif importance.explained <= 0.0:
        text += ", but this does not hold for models that were held out"
    else:
        text += f"; on held-out models this explains {importance.explained:.0%} of the variance"
    if importance.slowdown:
        listed = ", ".join(f"{ratio:.1f} under {load}" for load, ratio in importance.slowdown)
        text += f". Time relative to running alone: {listed}"
    return f"{text} ({importance.samples} samples)."


def plot_importances(path: Path, found: Sequence[Importance]) -> None:
    """Draw one bar per kind of layer, divided by feature."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    names = sorted({name for of in found for name, _ in of.shares}, key=lambda name: -_total(found, name))
    names = [name for name in names if _total(found, name) > 0.01 * len(found)]
    colors = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#004488", "#44bb99",
              "#994455", "#999999", "#eecc66", "#bbbbbb"]  # fmt: skip
    figure = Figure(figsize=(9, 1.4 + 0.42 * max(1, len(found))), layout="constrained")
    axes = figure.add_subplot()
    positions = list(range(len(found)))[::-1]
    left = np.zeros(len(found))
    for number, name in enumerate(names):
        share = np.array([dict(of.shares).get(name, 0.0) for of in found])
        axes.barh(positions, share, 0.7, left=left, color=colors[number % len(colors)], label=name)
        left += share
    axes.set_yticks(positions, [f"{of.kind} ({of.samples})" for of in found], fontsize=8)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of the variance that the tree explains")
    if names:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    write_figure(path, figure)


def _total(found: Sequence[Importance], name: str) -> float:
    return sum(dict(of.shares).get(name, 0.0) for of in found)


def _importance(kind: str, samples: Sequence[Sample], seed: int) -> Importance:
    with optional("learning a predictor"):
        from sklearn.tree import DecisionTreeRegressor

    rows = tree_features([(sample.counts, sample.setting, sample.load) for sample in samples], kinds=False)
    times = np.log([sample.ms for sample in samples])

    def fit(rows: np.ndarray, times: np.ndarray) -> DecisionTreeRegressor:
        tree = DecisionTreeRegressor(max_depth=_DEPTH, min_samples_leaf=_MIN_LEAF_SAMPLES, random_state=seed)
        return tree.fit(rows, times)

    shares: dict[str, float] = {}
    for name, share in zip(TREE_FEATURES, fit(rows, times).feature_importances_, strict=True):
        name = LOAD if name in _LOAD_FEATURES else name
        shares[name] = shares.get(name, 0.0) + float(share)
    models = np.array([sample.model for sample in samples])
    explained = None
    if len(set(models)) > 1:
        predicted = np.empty_like(times)
        for model in set(models):
            held_out = models == model
            predicted[held_out] = fit(rows[~held_out], times[~held_out]).predict(rows[held_out])
        variance = float(((times - times.mean()) ** 2).sum())
        explained = 1.0 - float(((times - predicted) ** 2).sum()) / variance if variance else None
    ordered = tuple(sorted(((n, s) for n, s in shares.items() if s > 0.0), key=lambda entry: -entry[1]))
    return Importance(kind, len(samples), ordered, explained, _slowdown(samples))


def _layer_of(sample: Sample) -> tuple[str, str, int]:
    """Key that is equal for measurements of the same layer on the same share of the device."""
    return sample.model, sample.layer, sample.setting.sms


def _slowdown(samples: Sequence[Sample]) -> tuple[tuple[str, float], ...]:
    alone = {_layer_of(sample): sample.ms for sample in samples if not sample.load.level}
    found = []
    for kind in LOAD_KINDS[1:]:
        loaded = [sample for sample in samples if sample.load.kind == kind and _layer_of(sample) in alone]
        highest = max((sample.load.level for sample in loaded), default=0)
        ratios = [sample.ms / alone[_layer_of(sample)] for sample in loaded if sample.load.level == highest]
        if highest:
            found.append((str(Load(kind, highest)), float(np.median(ratios))))
    return tuple(found)
