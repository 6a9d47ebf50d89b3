"""Feature importances for the time of each kind of layer, from decision trees; as text and as a plot.

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

#: Minimum number of samples of a kind.
_LEAST = 20
_DEPTH, _LEAF = 8, 3
_NAMED = 3
#: Features that together describe the background load.
LOAD = "load"
_LOAD_PARTS = ("load level", "oversubscription", "compute load", "memory load", "DNN load")


@dataclass(frozen=True)
class Importance:
    """Importances of one kind of layer. shares: of the explained variance of log time, by feature, descending, sum 1.

    explained: R^2 of the tree on held-out models; negative if it is worse than the mean. slowdown: by highest load of
    each kind, the ratio of median time under load to that alone; empty without load.
    """

    kind: str
    samples: int
    shares: tuple[tuple[str, float], ...]
    explained: float | None
    slowdown: tuple[tuple[str, float], ...]


def importances(samples: Sequence[Sample], seed: int = 0) -> list[Importance]:
    """For each kind of layer with enough samples, the costliest first."""
    rows = known_layers(samples)
    found = []
    for kind in KINDS:
        own = [sample for sample in rows if sample.counts.kind == kind]
        if len(own) >= _LEAST:
            found.append((sum(sample.ms for sample in own), _importance(kind, own, seed)))
    return [importance for _, importance in sorted(found, key=lambda entry: -entry[0])]


def explain(importance: Importance) -> str:
    """Describe it in one or two sentences."""
    named = [f"{name} ({share:.0%})" for name, share in importance.shares[:_NAMED] if share >= 0.03]
    kind = importance.kind[0].upper() + importance.kind[1:]
    if not named:
        return f"{kind}: {importance.samples} samples, of which nothing explains the time."
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    text = f"{kind}: the time is decided by {listed}"
    if importance.explained is None:
        text += ", seen on one model only"
    elif importance.explained <= 0.0:
        text += ", but this does not carry over to models that were held out"
    else:
        text += f"; on models held out this explains {importance.explained:.0%} of the variance"
    if importance.slowdown:
        listed = ", ".join(f"{ratio:.1f} beside {load}" for load, ratio in importance.slowdown)
        text += f". Against alone it takes this many times as long: {listed}"
    return f"{text} ({importance.samples} samples)."


def plot_importances(path: Path, found: Sequence[Importance]) -> None:
    """One bar per kind of layer, divided by feature."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    names = sorted({name for of in found for name, _ in of.shares}, key=lambda name: -_total(found, name))
    names = [name for name in names if _total(found, name) > 0.01 * len(found)]
    colors = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#004488", "#44bb99",
              "#994455", "#999999", "#eecc66", "#bbbbbb"]  # fmt: skip
    figure = Figure(figsize=(9, 1.4 + 0.42 * max(1, len(found))), layout="constrained")
    axes = figure.add_subplot()
    places = list(range(len(found)))[::-1]
    left = np.zeros(len(found))
    for number, name in enumerate(names):
        share = np.array([dict(of.shares).get(name, 0.0) for of in found])
        axes.barh(places, share, 0.7, left=left, color=colors[number % len(colors)], label=name)
        left += share
    axes.set_yticks(places, [f"{of.kind} ({of.samples})" for of in found], fontsize=8)
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("share of what the tree explains")
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

    def grown(rows: np.ndarray, times: np.ndarray) -> DecisionTreeRegressor:
        return DecisionTreeRegressor(max_depth=_DEPTH, min_samples_leaf=_LEAF, random_state=seed).fit(rows, times)

    shares: dict[str, float] = {}
    for name, share in zip(TREE_FEATURES, grown(rows, times).feature_importances_, strict=True):
        name = LOAD if name in _LOAD_PARTS else name
        shares[name] = shares.get(name, 0.0) + float(share)
    models = np.array([sample.model for sample in samples])
    explained = None
    if len(set(models)) > 1:
        predicted = np.empty_like(times)
        for model in set(models):
            out = models == model
            predicted[out] = grown(rows[~out], times[~out]).predict(rows[out])
        variance = float(((times - times.mean()) ** 2).sum())
        explained = 1.0 - float(((times - predicted) ** 2).sum()) / variance if variance else None
    ordered = tuple(sorted(((n, s) for n, s in shares.items() if s > 0.0), key=lambda entry: -entry[1]))
    return Importance(kind, len(samples), ordered, explained, _slowdown(samples))


def _layer_of(sample: Sample) -> tuple[str, str, int]:
    """Equal for measurements of one layer on equal shares of the device."""
    return sample.model, sample.layer, sample.setting.sms


def _slowdown(samples: Sequence[Sample]) -> tuple[tuple[str, float], ...]:
    alone = {_layer_of(sample): sample.ms for sample in samples if not sample.load.level}
    found = []
    for kind in LOAD_KINDS[1:]:
        own = [sample for sample in samples if sample.load.kind == kind and _layer_of(sample) in alone]
        most = max((sample.load.level for sample in own), default=0)
        ratios = [sample.ms / alone[_layer_of(sample)] for sample in own if sample.load.level == most]
        if most:
            found.append((str(Load(kind, most)), float(np.median(ratios))))
    return tuple(found)
