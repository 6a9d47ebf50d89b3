"""Fits two regressors of layer times to measured samples, and compares them on held-out networks and load levels.

After Yoo, Jeong, Moon 2020 (see contention.py), who compare two regression models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.profiling.predictor import (
    Forest,
    Limits,
    Linear,
    Matrix,
    Predictor,
    ProfileError,
    Tree,
    floor_ms,
    linear_features,
    trained_ranges,
    tree_features,
)
from multi_dnn_ros.profiling.samples import Sample

#: Methods that scores compare: a baseline, then the regressors.
MACS, LINEAR, FOREST = "MACs x constant", "linear", "forest"
_TREES, _DEPTH, _LEAF_SAMPLES = 20, 9, 2


@dataclass(frozen=True)
class Scores:
    """Median absolute errors relative to the measured time, by method. held_out: what training did not see."""

    held_out: str
    layer: dict[str, float]
    network: dict[str, float]


#: Milliseconds of samples.
Predict = Callable[[Sequence[Sample]], Matrix]


def fit_linear(samples: Sequence[Sample], limits: Limits) -> Linear:
    """Nonnegative weights for each kind of layer that minimize the squares of the relative errors."""
    with optional("learning a predictor"):
        from sklearn.linear_model import LinearRegression

    weights = {}
    for kind in KINDS:
        own = [sample for sample in samples if sample.kind == kind]
        if own:
            features = linear_features([sample.question for sample in own], limits)
            times = np.array([sample.ms for sample in own])
            scale = np.maximum(features.max(axis=0), 1e-12)  # features of very different size
            model = LinearRegression(fit_intercept=False, positive=True)
            model.fit(features / scale, times, sample_weight=times**-2.0)
            weights[kind] = [float(weight) for weight in model.coef_ / scale]
    return Linear(weights=weights)


def fit_forest(samples: Sequence[Sample], limits: Limits, seed: int = 0) -> Forest:
    """A small random forest for the logarithm of the measured time divided by that at the device's limits."""
    with optional("learning a predictor"):
        from sklearn.ensemble import RandomForestRegressor

    questions = [sample.question for sample in samples]
    target = np.log(np.array([sample.ms for sample in samples]) / floor_ms(questions, limits))
    model = RandomForestRegressor(
        _TREES, max_depth=_DEPTH, min_samples_leaf=_LEAF_SAMPLES, max_features=0.5, random_state=seed
    )
    model.fit(tree_features(questions), target)
    return Forest(trees=[_tree(estimator.tree_) for estimator in model.estimators_])


def learn(samples: Sequence[Sample], progress: Callable[[], object] = lambda: None) -> tuple[Predictor, list[Scores]]:
    """A predictor with the regressor that has the smaller mean error over everything held out, and the errors.

    Raises ProfileError unless all samples are of one machine and of at least two models. progress: called after each
    held-out group.
    """
    rows = [sample for sample in samples if sample.is_timed]
    models = sorted({row.model for row in rows})
    machines = sorted({row.name for row in rows})
    if len(machines) != 1:
        raise ProfileError(f"learn from the tables of one machine; these are of {'; '.join(machines) or 'none'}")
    if len(models) < 2:
        raise ProfileError(f"the tables have only the model {models[0]}; holding one out needs at least two")
    limits = rows[0].limits
    scores = compare(rows, limits, progress)
    means = {name: np.mean([score.layer[name] + score.network[name] for score in scores]) for name in (LINEAR, FOREST)}
    best = min(means, key=lambda name: means[name])
    loads = {kind: max(row.load_level for row in rows if row.load_kind == kind) for kind in {r.load_kind for r in rows}}
    predictor = Predictor(
        **rows[0].model_dump(include={"device", "backend", "threads", "spare", "flops_per_s", "bytes_per_s"}),
        ranges=trained_ranges([sample.work for sample in samples]),  # with those that are too short for the clock
        loads=loads,
        model=fit_linear(rows, limits) if best == LINEAR else fit_forest(rows, limits),
    )
    return predictor, scores


def compare(samples: Sequence[Sample], limits: Limits, progress: Callable[[], object] = lambda: None) -> list[Scores]:
    """Scores on models without load, models under load, and load levels, each predicted from the others.

    Errors are |predicted - measured| / measured: the median over layers, and that over networks of the sum of their
    layers.
    """
    alone = [sample for sample in samples if not sample.load_level]
    loaded = [sample for sample in samples if sample.load_level]
    found = [_scores("networks, without load", alone, alone, lambda row: row.model, limits, progress)]
    if loaded:
        found.append(_scores("networks, under load", samples, loaded, lambda row: row.model, limits, progress))
    if len({sample.load_level for sample in loaded}) > 1:
        found.append(_scores("load levels", samples, loaded, lambda row: str(row.load_level), limits, progress))
    return [scores for scores in found if scores.layer]


def _scores(
    held_out: str, samples: Sequence[Sample], counted: Sequence[Sample], group_of: Callable[[Sample], str],
    limits: Limits, progress: Callable[[], object],
) -> Scores:  # fmt: skip
    layers: dict[str, list[float]] = defaultdict(list)
    networks: dict[str, list[float]] = defaultdict(list)
    for group in sorted({group_of(sample) for sample in counted}):
        train = [sample for sample in samples if group_of(sample) != group]
        test = [sample for sample in counted if group_of(sample) == group]
        if not train:
            continue
        measured = np.array([sample.ms for sample in test])
        networks_of = [f"{sample.model} {sample.load}" for sample in test]
        for name, predict in _fits(train, limits).items():
            predicted = predict(test)
            layers[name] += list(np.abs(predicted - measured) / measured)
            for network in set(networks_of):
                own = np.array(networks_of) == network
                networks[name].append(abs(predicted[own].sum() / measured[own].sum() - 1.0))
        progress()
    return Scores(
        held_out=held_out,
        layer={name: float(np.median(errors)) for name, errors in layers.items()},
        network={name: float(np.median(errors)) for name, errors in networks.items()},
    )


def _fits(train: Sequence[Sample], limits: Limits) -> dict[str, Predict]:
    macs = sum(sample.macs for sample in train)
    constant = sum(sample.ms for sample in train) / macs if macs else 0.0
    linear, forest = fit_linear(train, limits), fit_forest(train, limits)
    return {
        MACS: lambda rows: np.array([constant * row.macs for row in rows]),
        LINEAR: lambda rows: linear.predict([row.question for row in rows], limits),
        FOREST: lambda rows: forest.predict([row.question for row in rows], limits),
    }


def _tree(tree: Any) -> Tree:
    return Tree(
        feature=[max(0, int(feature)) for feature in tree.feature],
        threshold=tree.threshold.tolist(),
        left=tree.children_left.tolist(),
        right=tree.children_right.tolist(),
        value=tree.value[:, 0, 0].tolist(),
    )
