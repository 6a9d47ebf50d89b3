"""What decides the time of each kind of layer: importances from a decision tree, as text.

After Yoo, Jeong, Moon 2020 (see contention.py). A feature's importance is its share of the reduction of the variance of
the logarithm of the times over all splits of the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.profiling.predictor import TREE_FEATURES, tree_features
from multi_dnn_ros.profiling.samples import Sample

#: Kinds of layers with fewer samples are left out.
_MIN_SAMPLES = 20
_DEPTH, _MIN_LEAF_SAMPLES = 8, 3
#: Features that the text names: at most so many, and none below this share.
_MAX_NAMED, _MIN_SHARE = 3, 0.03
#: The importances of the features of the load are added up under this name.
LOAD = "load"


@dataclass(frozen=True)
class Importance:
    """Importances for one kind of layer. shares: by feature, in descending order; they add up to 1.

    explained: R^2 of the tree on models that were held out; None if there is only one model.
    """

    kind: str
    samples: int
    shares: dict[str, float]
    explained: float | None

    def text(self) -> str:
        """One or two sentences."""
        named = [f"{name} ({share:.0%})" for name, share in self.shares.items() if share >= _MIN_SHARE][:_MAX_NAMED]
        text = f"{self.kind[0].upper()}{self.kind[1:]}: the time depends mainly on {', '.join(named) or 'nothing here'}"
        if self.explained is not None:
            text += f"; on held-out models this explains {max(0.0, self.explained):.0%} of the variance"
        return f"{text} ({self.samples} samples)."


def importances(samples: Sequence[Sample]) -> list[Importance]:
    """One entry per kind of layer with enough samples, the costliest kind first."""
    found = []
    for kind in KINDS:
        own = [sample for sample in samples if sample.kind == kind and sample.is_timed]
        if len(own) >= _MIN_SAMPLES:
            found.append((sum(sample.ms for sample in own), _importance(kind, own)))
    return [importance for _, importance in sorted(found, key=lambda entry: -entry[0])]


def _importance(kind: str, samples: Sequence[Sample]) -> Importance:
    with optional("learning a predictor"):
        from sklearn.metrics import r2_score
        from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
        from sklearn.tree import DecisionTreeRegressor

    rows = tree_features([sample.question for sample in samples], kinds=False)
    times = np.log([sample.ms for sample in samples])
    models = [sample.model for sample in samples]
    tree = DecisionTreeRegressor(max_depth=_DEPTH, min_samples_leaf=_MIN_LEAF_SAMPLES, random_state=0)
    explained = None
    if len(set(models)) > 1:
        explained = float(r2_score(times, cross_val_predict(tree, rows, times, groups=models, cv=LeaveOneGroupOut())))
    shares: dict[str, float] = {}
    for name, share in zip(TREE_FEATURES, tree.fit(rows, times).feature_importances_, strict=True):
        key = LOAD if "load" in name else name
        shares[key] = shares.get(key, 0.0) + float(share)
    ordered = sorted(((name, share) for name, share in shares.items() if share > 0.0), key=lambda entry: -entry[1])
    return Importance(kind, len(samples), dict(ordered), explained)
