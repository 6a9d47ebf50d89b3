"""Importances and regressors from a table of layer times."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from profiling_fakes import law, machine

from multi_dnn_ros.models.layers import LayerWork
from multi_dnn_ros.profiling.importances import importances
from multi_dnn_ros.profiling.learn import FOREST, LINEAR, MACS, fit_forest, fit_linear, learn
from multi_dnn_ros.profiling.predictor import Load, ProfileError, tree_features
from multi_dnn_ros.profiling.samples import Sample

LOADS = (Load(), *(Load(kind, level) for kind in ("compute", "memory", "dnn") for level in (1, 2, 4)))
LIMITS = machine().limits


def convolution(order: random.Random) -> LayerWork:
    channels_in, channels_out, side = order.choice([8, 16, 32]), order.choice([8, 16, 32]), order.choice([7, 14, 28])
    parameters = channels_in * channels_out * 9
    macs = parameters * side * side
    read, written = 4 * (channels_in * side * side + parameters), 4 * channels_out * side * side
    return LayerWork(
        "convolution", macs, 2 * macs, parameters, read, written, 9, 1, channels_in, channels_out, side * side
    )


def elementwise(order: random.Random) -> LayerWork:
    channels, side = order.choice([8, 16, 32, 64]), order.choice([14, 28, 56])
    size = channels * side * side
    return LayerWork("element-wise", 0, size, 0, 4 * size, 4 * size, 1, 1, channels, channels, side * side)


@cache
def samples(models: int = 3, layers: int = 16, noise: float = 0.0) -> tuple[Sample, ...]:
    order = random.Random(0)
    found = []
    for model in range(models):
        for layer in range(layers):
            work = convolution(order) if layer % 2 else elementwise(order)
            for load in LOADS:
                ms = law(work, load) * (1.0 + noise * order.uniform(-1.0, 1.0))
                found.append(Sample(
                    **machine().model_dump(), model=f"model {model}", layer=f"layer_{layer}", **vars(work),
                    load_kind=load.kind, load_level=load.level, ms=ms, rounds=5,
                ))  # fmt: skip
    return tuple(found)


def test_the_linear_model_finds_a_linear_law() -> None:
    model = fit_linear(samples(), LIMITS)
    arithmetic, moved, launch = model.weights["convolution"][:3]
    assert (arithmetic, moved, launch) == (
        pytest.approx(3.0, rel=0.02), pytest.approx(2.0, rel=0.1), pytest.approx(0.02, rel=0.1)
    )  # fmt: skip
    predicted = model.predict([row.question for row in samples()], LIMITS)
    assert np.allclose(predicted, [row.ms for row in samples()], rtol=0.01)


def test_the_exported_forest_predicts_as_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.ensemble import RandomForestRegressor

    trained: list[RandomForestRegressor] = []
    fit = RandomForestRegressor.fit
    monkeypatch.setattr(RandomForestRegressor, "fit", lambda self, *given: [fit(self, *given), trained.append(self)][0])
    rows = samples(2, 12, 0.1)
    ours = fit_forest(rows, LIMITS)
    assert fit_forest(rows, LIMITS) == ours  # the same again
    questions = [row.question for row in rows]
    ideal = np.array([sum(LIMITS.ideal_ms(row.work)) + 1e-3 for row in rows])
    theirs = ideal * np.exp(trained[0].predict(tree_features(questions)))
    assert np.allclose(ours.predict(questions, LIMITS), theirs, rtol=1e-6)


def test_networks_and_levels_are_held_out_and_compared_with_baselines() -> None:
    seen: list[int] = []
    predictor, errors = learn(samples(), lambda: seen.append(0))
    assert predictor.model.regressor == LINEAR  # the law is linear
    assert predictor.loads == {"none": 0, "compute": 4, "memory": 4, "dnn": 4}
    scores = {of.held_out: of for of in errors}
    assert list(scores) == ["networks, without load", "networks, under load", "load levels"]
    assert len(seen) == 3 + 3 + 3
    alone = scores["networks, without load"]
    assert set(alone.layer) == {MACS, LINEAR, FOREST}
    assert alone.layer[LINEAR] < 0.01 < alone.layer[FOREST] < alone.layer[MACS]
    assert scores["networks, under load"].network[LINEAR] < 0.02 < scores["networks, under load"].network[MACS]


def test_an_unusable_table_is_rejected() -> None:
    rows = samples(2, 2)
    with pytest.raises(ProfileError, match="only the model model 0"):
        learn(samples(1))
    with pytest.raises(ProfileError, match="the tables of one machine; these are of none"):
        learn([row.model_copy(update={"ms": 0.0}) for row in rows])
    with pytest.raises(ProfileError, match=r"one machine; these are of .*Orin"):
        learn([*rows, *(row.model_copy(update={"device": "Orin"}) for row in rows)])


def test_importances_as_text() -> None:
    found = {of.kind: of for of in importances(samples(noise=0.02))}
    assert set(found) == {"convolution", "element-wise"}
    for of in found.values():
        assert sum(of.shares.values()) == pytest.approx(1.0)
        assert of.explained is not None
        assert of.explained > 0.5
    assert found["convolution"].shares["load"] > 10 * found["element-wise"].shares.get("load", 0.0)
    text = found["convolution"].text()
    assert text.startswith("Convolution: the time depends mainly on ")
    (only,) = importances([row for row in samples(1) if row.kind == "convolution"])
    assert only.explained is None
    assert importances(samples(1, 1)[:3]) == []
