"""Importances and regressors from a table of layer times."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from profiling_fakes import CPU, SETTING, law, target
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.planning.features import ideal_ms, linear_features
from multi_dnn_ros.planning.predictor import trained_range
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample, read_samples, write_samples
from multi_dnn_ros.profiling.analysis import explain, importances, plot_importances
from multi_dnn_ros.profiling.learn import (
    CORRECTED,
    LINEAR,
    MACS,
    TREES,
    UNLOADED,
    compare,
    fit_linear,
    fit_trees,
    learn,
)

pytestmark = pytest.mark.usefixtures("few_trees")

LOADS = (Load(), *(Load(kind, level) for kind in ("compute", "memory", "dnn") for level in (1, 2, 4)))


def convolution(order: random.Random) -> LayerCounts:
    channels_in, channels_out, side = order.choice([8, 16, 32]), order.choice([8, 16, 32]), order.choice([7, 14, 28])
    parameters = channels_in * channels_out * 9
    macs = parameters * side * side
    read, written = 4 * (channels_in * side * side + parameters), 4 * channels_out * side * side
    return LayerCounts(
        "convolution", macs, 2 * macs, parameters, read, written, 9, 1, channels_in, channels_out, side * side
    )


def elementwise(order: random.Random) -> LayerCounts:
    channels, side = order.choice([8, 16, 32, 64]), order.choice([14, 28, 56])
    size = channels * side * side
    return LayerCounts("element-wise", 0, size, 0, 4 * size, 4 * size, 1, 1, channels, channels, side * side)


def samples(models: int = 3, layers: int = 16, noise: float = 0.0) -> list[Sample]:
    order = random.Random(0)
    found = []
    for model in range(models):
        for layer in range(layers):
            counts = convolution(order) if layer % 2 else elementwise(order)
            for load in LOADS:
                ms = law(counts, load) * (1.0 + noise * order.uniform(-1.0, 1.0))
                found.append(Sample(f"model {model}", f"layer_{layer}", counts, SETTING, load, ms, ms, ms, ms, 5))
    return found


def test_the_table_is_written_and_read(tmp_path: Path) -> None:
    rows = samples(2, 2)
    write_samples(tmp_path / "new" / "samples.csv", rows)
    again = read_samples(tmp_path / "new" / "samples.csv")
    assert [dataclasses.replace(row, ms=0.0, ms_mean=0.0, ms_p25=0.0, ms_p75=0.0) for row in again] == [
        dataclasses.replace(row, ms=0.0, ms_mean=0.0, ms_p25=0.0, ms_p75=0.0) for row in rows
    ]
    assert all(math.isclose(a.ms, b.ms, rel_tol=1e-5) for a, b in zip(again, rows, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.splitlines()[0] + "\n", "the table is empty"),
        (lambda text: "", "has no column model, layer"),
        (lambda text: text.replace("element-wise", "wizardry"), "line 2: kind is 'wizardry'; expected one of convol"),
        (lambda text: text.replace(",none,0,", ",none,lots,", 1), "line 2: load_level is 'lots'; expected a number"),
        (lambda text: text.replace(",none,", ",sofa,", 1), "line 2: load_kind is 'sofa'"),
        (lambda text: text.replace(",none,0,", ",none,0,-", 1), "line 2: ms is -"),
        (lambda text: "\0" * 100, "has no column|not a table"),
        (
            lambda text: text.replace(f",{SETTING.flops_per_s:.6g},", ",0,", 1),
            "line 2: flops_per_s is 0; expected more",
        ),
    ],
)
def test_errors_in_a_table_name_line_and_column(change, message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    write_samples(path, samples(1, 1))
    path.write_text(change(path.read_text()))
    with pytest.raises(ProfileError, match=f"samples.csv.*({message})"):
        read_samples(path)
    with pytest.raises(ProfileError, match=r"none\.csv: cannot be read"):
        read_samples(tmp_path / "none.csv")


def test_the_linear_model_finds_a_linear_law() -> None:
    rows = samples()
    model = fit_linear(rows)
    for kind in ("convolution", "element-wise"):
        arithmetic, memory, launch = model.weights[kind][:3]
        assert launch == pytest.approx(0.02, rel=0.02)
        if kind == "convolution":
            assert (arithmetic, memory) == (pytest.approx(3.0, rel=0.02), pytest.approx(2.0, rel=0.05))
    questions = [(row.counts, row.setting, row.load) for row in rows]
    assert np.allclose(model.predict(questions), [row.ms for row in rows], rtol=1e-3)
    assert (linear_features(questions) >= 0.0).all()
    unknown = dataclasses.replace(rows[0].counts, kind="attention")
    assert np.isnan(model.predict([(unknown, SETTING, Load())])).all()


@pytest.mark.parametrize("failures", [1, 99])
def test_a_failed_search_restarts_or_falls_back_to_least_squares(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may make SciPy's search raise ValueError."""
    import scipy.optimize

    search, calls = scipy.optimize.least_squares, iter(range(1000))

    def failing(*args, **kwargs):
        if next(calls) % 3 < failures:
            raise ValueError("`x` is not within the trust region.")
        return search(*args, **kwargs)

    monkeypatch.setattr(scipy.optimize, "least_squares", failing)
    rows = samples()
    predicted = fit_linear(rows).predict([(row.counts, row.setting, row.load) for row in rows])
    assert np.allclose(predicted, [row.ms for row in rows], rtol=0.05)


def test_trees_predict_as_scikit_learn() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    rows = samples(2, 12, noise=0.1)
    questions = [(row.counts, row.setting, row.load) for row in rows]
    found: list[GradientBoostingRegressor] = []
    fit = GradientBoostingRegressor.fit

    def keep(self, features, times):
        found.append(self)
        return fit(self, features, times)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientBoostingRegressor, "fit", keep)
        ours = fit_trees(rows)
    from multi_dnn_ros.planning.features import tree_features

    theirs = ideal_ms(questions) * np.exp(found[0].predict(tree_features(questions)))
    assert np.allclose(ours.predict(questions), theirs, rtol=1e-6)
    assert fit_trees(rows) == ours  # the same again


def test_layers_below_the_resolution_of_the_clock_are_known() -> None:
    """Otherwise a predictor would refuse the very networks that it was trained on."""
    rows = samples(2, 4)
    smallest = min(rows, key=lambda row: row.counts.flops).counts
    short = [dataclasses.replace(row, ms=0.0) if row.counts == smallest else row for row in rows]
    trained = learn(short).seen[smallest.kind]
    assert trained == trained_range(rows)[smallest.kind]
    assert smallest.flops in {flops for flops, *_ in trained.sizes}


def test_models_and_levels_are_held_out_and_compared_with_baselines() -> None:
    scores = {of.held_out: of for of in compare(samples())}
    assert list(scores) == ["models, without load", "models, all loads", "load levels"]
    alone = scores["models, without load"]
    assert set(alone.layer) == {MACS, LINEAR, TREES, CORRECTED}  # the unloaded time would be the answer itself
    assert alone.layer[LINEAR] < 0.01
    assert alone.layer[LINEAR] < alone.layer[MACS]
    loaded = scores["models, all loads"]
    assert set(loaded.whole) == {MACS, UNLOADED, LINEAR, TREES, CORRECTED}
    assert loaded.whole[LINEAR] < 0.02 < loaded.whole[MACS]


GPU = dataclasses.replace(SETTING, device="a GPU, 100 SMs; auto", backend="cuda_graph", cores=0)
#: Milliseconds by which each stream beyond the first delays a launch.
WAITS = {"compute": 0.3, "memory": 0.15, "dnn": 0.01}


def waiting(counts: LayerCounts, load: Load) -> float:
    """Time on a GPU: each launch waits for every stream but the first; a wide convolution takes three launches."""
    launches = 3 if counts.kind == "convolution" and counts.channels_in >= 16 else 1
    unloaded = (3e3 * counts.flops + 2e3 * (counts.bytes_read + counts.bytes_written)) / 1e12 + 0.003
    return launches * (unloaded + WAITS.get(load.kind, 0.0) * max(0, load.level - 1))


@pytest.fixture(scope="module")
def crowded() -> list[Sample]:
    """Samples, within 10 %, of layers that take up to a thousand times as long under load as alone."""
    order = random.Random(1)
    found = []
    for model in range(3):
        for layer in range(16):
            counts = convolution(order) if layer % 2 else elementwise(order)
            for load in (Load(), *(Load(kind, level) for kind in WAITS for level in (1, 2, 4, 8))):
                ms = waiting(counts, load) * (1.0 + 0.1 * order.uniform(-1.0, 1.0))
                found.append(Sample(f"model {model}", f"layer_{layer}", counts, GPU, load, ms, ms, ms, ms, 2))
    return found


@pytest.mark.parametrize("level", [2, 4, 8])
def test_a_held_out_load_level_follows_the_law_of_waiting(crowded: list[Sample], level: int) -> None:
    """For levels between those of the training samples, and beyond them."""
    train = [row for row in crowded if row.load.level != level]
    test = [row for row in crowded if row.load.level == level]
    asked = [(row.counts, row.setting, row.load) for row in test]
    truth = np.array([waiting(row.counts, row.load) for row in test])
    linear = fit_linear(train)
    corrected = fit_trees(train, corrects=linear).predict(asked)
    for kind in WAITS:
        of_kind = [index for index, row in enumerate(test) if row.load.kind == kind]
        assert np.median(np.abs(corrected / truth - 1.0)[of_kind]) < 0.2, kind
    alone = fit_trees(train).predict(asked)  # trees cannot extrapolate
    assert np.median(np.abs(alone / truth - 1.0)) > 0.3


def test_the_regressor_is_chosen_by_all_held_out_groups(crowded: list[Sample]) -> None:
    rows = [row for row in crowded if row.load.kind in ("none", "compute")]
    predictor = learn(rows)
    scores = {of.held_out: of.layer for of in predictor.scores}
    assert scores["load levels"][CORRECTED] < 0.2 < scores["load levels"][TREES]
    mean = {name: sum(of[name] for of in scores.values()) for name in (LINEAR, TREES, CORRECTED)}
    assert predictor.provenance["regressor"] == min(mean, key=lambda name: mean[name]) != TREES
    # A table without unloaded samples has fewer groups to hold out.
    rows = [row for row in rows if row.load.level == 2 and row.model != "model 2"]
    assert learn(rows).provenance["regressor"] in predictor.scores[0].layer


def test_learning_from_tables_of_few_layers() -> None:
    rows = [row for row in samples(2) if not row.load.level]
    kinds = [[row for row in rows if row.counts.kind == kind] for kind in ("convolution", "element-wise")]
    single = [next(row for row in kinds[0] if row.model == model) for model in ("model 0", "model 1")]
    assert learn(single).provenance["samples"] == 2
    # The two models have no kind of layer in common: a regressor by kinds predicts nothing, an error of 100 %.
    apart = [dataclasses.replace(row, model=f"model {number}") for number, own in enumerate(kinds) for row in own]
    assert learn(apart).scores[0].layer[LINEAR] == 1.0


def test_importances_as_text_and_plot(tmp_path: Path) -> None:
    found = {of.kind: of for of in importances(samples(noise=0.02))}
    assert set(found) == {"convolution", "element-wise"}
    for of in found.values():
        assert sum(share for _, share in of.shares) == pytest.approx(1.0)
        assert of.explained > 0.5
    assert dict(found["convolution"].shares)["load"] > 10 * dict(found["element-wise"].shares).get("load", 0.0)
    sentence = explain(found["convolution"])
    assert sentence.startswith("Convolution: the time depends mainly on ")
    assert "load (" in sentence
    slowdown = dict(found["convolution"].slowdown)
    assert list(slowdown) == ["4 x compute", "4 x memory", "4 x dnn"]
    assert slowdown["4 x compute"] > 1.5 > slowdown["4 x memory"] == pytest.approx(1.0, abs=0.05)
    assert f"alone: {slowdown['4 x compute']:.1f} under 4 x compute, 1.0 under 4 x memory, 1.0 under" in sentence
    assert importances([row for row in samples() if not row.load.level])[0].slowdown == ()
    plot_importances(tmp_path / "plot.png", list(found.values()))
    assert (tmp_path / "plot.png").read_bytes()[:4] == b"\x89PNG"
    (only,) = importances([row for row in samples(1) if row.counts.kind == "convolution"])
    assert "as measured on one model only" in explain(only)
    assert importances(samples(1, 1)[:3]) == []


def test_a_layer_under_load_is_compared_with_itself_on_the_same_share_of_the_device() -> None:
    whole = samples()
    slower = [dataclasses.replace(row, ms=4.0 * row.ms, setting=dataclasses.replace(SETTING, sms=16)) for row in whole]
    for both, alone in zip(importances([*whole, *slower]), importances(whole), strict=True):
        assert dict(both.slowdown) == pytest.approx(dict(alone.slowdown))


def test_an_unusable_table_is_rejected() -> None:
    rows = samples(2, 2)
    with pytest.raises(ProfileError, match="has only one model, model 0"):
        learn(samples(1))
    with pytest.raises(ProfileError, match="no layer with a measurable time"):
        learn([dataclasses.replace(row, ms=0.0) for row in rows])
    other = [dataclasses.replace(row, setting=dataclasses.replace(SETTING, device="Orin")) for row in rows]
    with pytest.raises(ProfileError, match=r"more than one device: .*Orin"):
        learn(rows + other)


def detector(path: Path, channels: int) -> Path:
    """An exported network of three layers with the outputs of decoder yolo, for the role object."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.ReLU(), nn.Conv2d(channels, 6, 1), nn.Flatten(2))
    torch.export.save(torch.export.export(network.eval(), (torch.zeros(1, 3, 32, 32),)), path)
    return path


def test_contention_and_learn_through_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The commands of docs/profiling.md: none refuses the predictor that was learned by an earlier one."""
    models = [str(detector(tmp_path / f"small{channels}.pt2", channels)) for channels in (4, 8)]
    table, out = tmp_path / "samples.csv", tmp_path / "learnt"
    arguments = ["--device", "cpu", "--backend", "eager", "--repeats", "4", "--levels", "0,1", "--load-dnn", models[0]]
    assert main(["profile", "contention", *models, "--output", str(table), *arguments]) == 0
    rows = read_samples(table)
    assert {str(row.load) for row in rows} == {"alone", "1 x compute", "1 x memory", "1 x dnn"}
    assert {row.rounds for row in rows} == {4}
    assert len(rows) == 2 * 3 * 4
    assert main(["profile", "learn", str(table), "--output", str(out)]) == 0
    text = capsys.readouterr().out
    assert "| unloaded time" in text
    assert {path.name for path in out.iterdir()} == {"predictor.json", "learnt.json", "importances.png"}
    assert json.loads((out / "learnt.json").read_text())["command"]

    # Predictions need as many threads as the measurements had, which is not the default of `layers`.
    predictor = ["--predictor", str(out / "predictor.json")]
    cut = ["profile", "layers", models[1], "--device", "cpu", "--backend", "eager", "--repeats", "2"]
    assert main([*cut, "--cut", "predicted", *predictor]) == 0
    assert "does not cover" not in caplog.text
    assert ", 1 threads; " in capsys.readouterr().out
    assert main([*cut, "--cut", "predicted", *predictor, "--threads", "3"]) == 0
    assert "does not cover them: it was trained on " in caplog.text
    assert main([*cut, "--cut", "predicted"]) == 2
    (tmp_path / "robot.yaml").write_text(
        "/**:\n  ros__parameters:\n    device: cpu\n    workers: 2\n    cpu_threads: 1\n    dnns: [object]\n    dnn:\n"
        f"      object: {{model: {models[1]}, decoder: yolo, labels: [car, truck], backend: eager, jobs: 1}}\n"
    )
    fit = ["profile", "fit", "--params-file", str(tmp_path / "robot.yaml"), "--rate", "front=1", *predictor]
    capsys.readouterr()
    assert main(fit) == 0
    assert "measured, because" not in capsys.readouterr().out

    assert main(["profile", "contention", models[0], "--output", str(table), "--slices", "16", "--device", "cpu"]) == 1
    assert (
        "a slice of 16 SMs was requested, but only an NVIDIA GPU can be partitioned; the device is cpu"
        in capsys.readouterr().err
    )
    assert main(["profile", "learn", str(tmp_path / "none.csv"), "--output", str(out)]) == 1


def test_a_background_load_works_and_ends() -> None:
    from multi_dnn_ros.profiling.loads import BackgroundLoad

    threads = torch.get_num_threads()
    for kind in ("compute", "memory", "dnn"):
        with BackgroundLoad(Load(kind, 2), target(), lambda: ([torch.relu], torch.zeros(1))) as load:
            assert all(calls >= 1 for calls in load.calls)
            assert torch.get_num_threads() == threads
        assert not any(thread.is_alive() for thread in load._threads)
    with (
        pytest.raises(ProfileError, match="a background load failed: sofa"),
        BackgroundLoad(Load("dnn", 1), target(), lambda: ([_fails], ())),
    ):
        pass
    assert CPU.type == "cpu"


def _fails(carried):
    raise RuntimeError("sofa")
