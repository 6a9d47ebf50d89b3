"""Fits predictors of layer times to measured samples, and evaluates them on held-out models and load levels.

After Yoo, Jeong, Moon, Analyzing the Execution Time of Different DNN Hidden Layer Types During Inference Under GPU
Contention, KIISE Transactions on Computing Practices 26(10), 2020, which compares two regression models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.features import Matrix, Question, linear_features, tree_features
from multi_dnn_ros.planning.predictor import (
    Linear,
    Predictor,
    Scores,
    Slice,
    Tree,
    Trees,
    base_ms,
    trained_range,
)
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import Sample, Setting, known_layers

Fit = Callable[[Sequence[Sample]], Callable[[Sequence[Sample]], Matrix]]
Regressor = Callable[[Sequence[Sample], int], Linear | Trees]
MACS, UNLOADED = "MACs x constant", "unloaded time"
LINEAR, TREES, CORRECTED = "linear", "trees", "linear, corrected by trees"
_TREES, _DEPTH, _RATE, _LEAF_SAMPLES = 200, 4, 0.06, 6
#: Search for the linear model's weights: errors of logarithms that count as small, maximum number of evaluations, and
#: a time that is added to keep logarithms finite.
_SMALL_LOG, _MAX_EVALUATIONS, _TINY_MS = 0.1, 200, 1e-9
#: Minimum initial weights, relative to the median time; the next one is tried if the search fails.
_MIN_STARTS = (1e-3, 2e-3, 1e-2)


def fit_linear(samples: Sequence[Sample]) -> Linear:
    """Nonnegative weights for each kind of layer that minimize the absolute logarithms of predicted / measured.

    Logarithms, because a layer may take a hundred times as long under load: relative errors are bounded by 1 below the
    measured time and unbounded above, so that least squares of them would underestimate most times. Absolute values
    (smoothed below _SMALL_LOG), because they fit the median instead of outliers.
    """
    weights = {}
    for kind in KINDS:
        of_kind = [sample for sample in samples if sample.counts.kind == kind]
        if of_kind:
            times = np.array([sample.ms for sample in of_kind])
            weights[kind] = tuple(float(weight) for weight in _weights(linear_features(_questions(of_kind)), times))
    return Linear(weights=weights)


def _weights(features: Matrix, times: Matrix) -> Matrix:
    """Minimize the absolute logarithms, starting from the unique least-squares solution of the relative errors."""
    with optional("learning a predictor"):
        from scipy.optimize import least_squares, nnls

    scale = features.max(axis=0)
    used = scale > 0.0
    unit = features[:, used] / scale[used]
    start, _ = nnls(unit / times[:, None], np.ones(len(times)), maxiter=10_000)
    logs = np.log(times)
    best = start
    for smallest in _MIN_STARTS:
        try:
            best = least_squares(
                lambda weights: np.log(unit @ weights + _TINY_MS) - logs,
                # Strictly inside the bounds, where every weight has a gradient.
                np.maximum(start, smallest * np.median(times)),
                jac=lambda weights: unit / (unit @ weights + _TINY_MS)[:, None],
                bounds=(0.0, np.inf), loss="soft_l1", f_scale=_SMALL_LOG, max_nfev=_MAX_EVALUATIONS,
            ).x  # fmt: skip
            break
        except ValueError:  # raised by SciPy if rounding puts a step outside the trust region
            continue
    weights = np.zeros(len(scale))
    weights[used] = best / scale[used]
    return weights


def fit_trees(samples: Sequence[Sample], seed: int = 0, *, corrects: Linear | None = None) -> Trees:
    """Gradient boosting of the logarithm of measured / ideal time; the same samples and seed give the same trees.

    corrects: linear model whose predictions replace the ideal times.
    """
    with optional("learning a predictor"):
        from sklearn.ensemble import GradientBoostingRegressor

    questions = _questions(samples)
    target = np.log(np.array([sample.ms for sample in samples]) / base_ms(questions, corrects))
    regressor = GradientBoostingRegressor(
        n_estimators=_TREES, max_depth=_DEPTH, learning_rate=_RATE, min_samples_leaf=min(_LEAF_SAMPLES, len(samples)),
        subsample=0.7 if len(samples) > 1 else 1.0, max_features=0.5, loss="huber", random_state=seed,
    )  # fmt: skip
    regressor.fit(tree_features(questions), target)
    trees = tuple(_tree(estimator.tree_) for estimator in regressor.estimators_[:, 0])
    base = float(np.ravel(regressor.init_.constant_)[0])
    return Trees(corrects=corrects, base=base, rate=_RATE, trees=trees)


def learn(
    samples: Sequence[Sample], *, seed: int = 0, progress: Callable[[], object] = lambda: None, **origin: Any
) -> Predictor:
    """A predictor with the regressor that has the smallest mean error, and with all scores and its provenance.

    The mean weighs all scores equally: held-out models without load, models under load, and load levels, each for
    layers and for whole networks. Raises ProfileError unless all samples are of one device, backend and precision and
    of at least two models. progress: called after each held-out group. origin: added to the provenance.
    """
    rows = usable(samples)
    settings = {row.setting.sms: row.setting for row in rows}
    setting = settings[0]
    scores = compare(rows, seed=seed, progress=progress)
    compared = [score for score in scores if score.layer]
    best = min(_REGRESSORS, key=lambda name: sum(score.layer[name] + score.whole[name] for score in compared))
    models = {sms: _REGRESSORS[best](of_slice, seed) for sms, of_slice in _by_slice(rows).items()}
    loads: dict[str, int] = defaultdict(int)
    for sample in rows:
        loads[sample.load.kind] = max(loads[sample.load.kind], sample.load.level)
    return Predictor(
        device=setting.device,
        backend=setting.backend,
        precision=setting.precision,
        threads=setting.threads,
        cores=setting.cores,
        flops_per_s=setting.flops_per_s,
        bytes_per_s=setting.bytes_per_s,
        slices={
            sms: Slice(flops_per_s=of.flops_per_s, bytes_per_s=of.bytes_per_s, model=models[sms])
            for sms, of in sorted(settings.items())
            if sms
        },
        seen=trained_range(samples),  # includes layers below the clock's resolution, whose times are known to be short
        loads=dict(loads),
        model=models[0],
        scores=tuple(scores),
        provenance={
            "models": sorted({sample.model for sample in rows}),
            "samples": len(rows),
            "seed": seed,
            "regressor": best,
            **origin,
        },
    )


def usable(samples: Sequence[Sample]) -> list[Sample]:
    """The samples with a known time, with common limits; raises ProfileError if they cannot be learned from together.

    Tables of one device may contain different measured limits; the largest ones apply, per slice.
    """
    rows = known_layers(samples)
    if not rows:
        raise ProfileError("the table has no layer with a measurable time")
    for name in ("device", "backend", "precision"):
        found = sorted({getattr(sample.setting, name) for sample in rows})
        if len(found) > 1:
            raise ProfileError(f"the table has more than one {name}: {', '.join(found)}; learn from one at a time")
    slices = _by_slice(rows)
    if 0 not in slices:
        raise ProfileError(
            f"the table has only slices, of {', '.join(map(str, slices))} SMs; measure the whole device too, with "
            f"--slices 0,{','.join(map(str, slices))}"
        )
    models = {sample.model for sample in rows}
    if len(models) < 2:
        raise ProfileError(f"the table has only one model, {', '.join(models)}; holding one out needs at least two")
    flops = {sms: max(row.setting.flops_per_s for row in of_slice) for sms, of_slice in slices.items()}
    moved = {sms: max(row.setting.bytes_per_s for row in of_slice) for sms, of_slice in slices.items()}

    def with_common_limits(setting: Setting) -> Setting:
        return replace(setting, flops_per_s=flops[setting.sms], bytes_per_s=moved[setting.sms])

    return [replace(row, setting=with_common_limits(row.setting)) for row in rows]


def _by_slice(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """Samples by slice: each slice is trained separately, like another device."""
    slices: dict[int, list[Sample]] = {sms: [] for sms in sorted({sample.setting.sms for sample in samples})}
    for sample in samples:
        slices[sample.setting.sms].append(sample)
    return slices


def compare(samples: Sequence[Sample], *, seed: int = 0, progress: Callable[[], object] = lambda: None) -> list[Scores]:
    """Evaluate the regressors and both baselines on held-out samples, separately for each slice.

    Held out are models without load, then models under load, then load levels. Errors are |predicted - measured| /
    measured: the median over layers, and the median over (model, load) of the error of the sum of the layers. Only one
    baseline, UNLOADED, knows the unloaded time of a layer.
    """
    scores = []
    for sms, of_slice in _by_slice(samples).items():
        fits: dict[str, Fit] = {
            MACS: _macs_times_constant,
            UNLOADED: _unloaded(of_slice),
            **{name: _predicting(regressor, seed) for name, regressor in _REGRESSORS.items()},
        }
        where = f", on {sms} SMs" if sms else ""
        alone = [sample for sample in of_slice if not sample.load.level]
        loaded = [sample for sample in of_slice if sample.load.level]
        scores.append(_score(f"models, without load{where}", alone, lambda sample: sample.model, fits, progress))
        if not loaded:
            continue
        scores.append(
            _score(f"models, all loads{where}", of_slice, lambda sample: sample.model, fits, progress, loaded)
        )
        if len({sample.load.level for sample in loaded}) > 1:
            scores.append(
                _score(f"load levels{where}", of_slice, lambda sample: str(sample.load.level), fits, progress, loaded)
            )
    return scores


def _score(
    what: str,
    samples: Sequence[Sample],
    group_of: Callable[[Sample], str],
    fits: Mapping[str, Fit],
    progress: Callable[[], object],
    counted: Sequence[Sample] | None = None,
) -> Scores:
    """Errors when each group is predicted from the others. counted: samples whose errors count; None: all."""
    count = {id(sample) for sample in (samples if counted is None else counted)}
    layers: dict[str, list[float]] = {name: [] for name in fits}
    wholes: dict[str, list[float]] = {name: [] for name in fits}
    groups = sorted({group_of(sample) for sample in samples})
    for group in groups:
        train = [sample for sample in samples if group_of(sample) != group]
        test = [sample for sample in samples if group_of(sample) == group and id(sample) in count]
        if not train or not test:
            continue
        measured = np.array([sample.ms for sample in test])
        for name, fit in fits.items():
            predicted = fit(train)(test)
            if name == UNLOADED and np.isnan(predicted).all():
                continue  # this baseline has nothing to predict; elsewhere NaN, an unknown kind of layer, is an error
            predicted = np.nan_to_num(predicted)
            layers[name] += list(np.abs(predicted - measured) / measured)
            sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
            for sample, guess in zip(test, predicted, strict=True):
                entry = sums[sample.model, str(sample.load)]
                entry[0] += guess
                entry[1] += sample.ms
            wholes[name] += [abs(guess - ms) / ms for guess, ms in sums.values()]
        progress()
    return Scores(
        held_out=what,
        layer={name: float(np.median(errors)) for name, errors in layers.items() if errors},
        whole={name: float(np.median(errors)) for name, errors in wholes.items() if errors},
    )


def _predicting(regressor: Regressor, seed: int) -> Fit:
    def fit(train: Sequence[Sample]) -> Callable[[Sequence[Sample]], Matrix]:
        model = regressor(train, seed)
        return lambda rows: model.predict(_questions(rows))

    return fit


def _macs_times_constant(train: Sequence[Sample]) -> Callable[[Sequence[Sample]], Matrix]:
    """Baseline: MACs times the total time of the training layers per MAC."""
    macs = sum(sample.counts.macs for sample in train)
    constant = sum(sample.ms for sample in train) / macs if macs else 0.0
    return lambda rows: np.array([constant * sample.counts.macs for sample in rows])


def _unloaded(samples: Sequence[Sample]) -> Fit:
    """Baseline: the measured time of the same layer alone, whatever is held out; NaN for samples without load."""
    alone = {(sample.model, sample.layer): sample.ms for sample in samples if not sample.load.level}
    known = lambda rows: np.array(  # noqa: E731
        [alone.get((sample.model, sample.layer), np.nan) if sample.load.level else np.nan for sample in rows]
    )
    return lambda train: known


def _questions(samples: Sequence[Sample]) -> list[Question]:
    return [(sample.counts, sample.setting, sample.load) for sample in samples]


def _tree(tree: Any) -> Tree:
    leaves = tree.children_left < 0
    return Tree(
        feature=tuple(int(value) for value in np.where(leaves, 0, tree.feature)),
        threshold=tuple(float(value) for value in np.where(leaves, 0.0, tree.threshold)),
        left=tuple(int(child) for child in tree.children_left),
        right=tuple(int(child) for child in tree.children_right),
        value=tuple(float(value) for value in tree.value[:, 0, 0]),
    )


_REGRESSORS: dict[str, Regressor] = {
    LINEAR: lambda rows, seed: fit_linear(rows),
    TREES: fit_trees,
    CORRECTED: lambda rows, seed: fit_trees(rows, seed, corrects=fit_linear(rows)),
}
