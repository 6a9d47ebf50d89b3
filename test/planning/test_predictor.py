"""A predictor: a file of numbers that reports what it was not trained for."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from profiling_fakes import SETTING, SHAPE, Small, law, target

from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.planning.measure import trace_for
from multi_dnn_ros.planning.predictor import (
    Prediction,
    Predictor,
    TrainedRange,
    layers_of,
    predicted_costs,
    read_predictor,
    write_predictor,
)
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample
from multi_dnn_ros.planning.service import predicted_services
from multi_dnn_ros.profiling.learn import learn


@pytest.fixture(scope="module")
def taught(few_trees: None) -> Predictor:
    return learn(table(), note="tests")


@cache
def table() -> tuple[Sample, ...]:
    """Trained on layers like those of `Small`, with 2 to 16 channels."""
    rows = []
    for channels in (2, 4, 6, 16):
        for shape in layers_of(trace_for(Small(channels), SHAPE, target())):
            counts = LayerCounts.of(shape)
            for load in (Load(), Load("dnn", 1), Load("dnn", 2)):
                ms = law(counts, load)
                rows.append(Sample(f"small {channels}", shape.name, counts, SETTING, load, ms, ms, ms, ms, 5))
    return tuple(rows)


def test_the_predictor_is_a_file_of_numbers(tmp_path: Path, taught: Predictor) -> None:
    predictor = taught
    assert predictor.provenance["note"] == "tests"
    assert predictor.scores
    write_predictor(tmp_path / "predictor.json", predictor)
    again = read_predictor(tmp_path / "predictor.json")
    layers = layers_of(trace_for(Small(8), SHAPE, target()))
    assert again == predictor
    assert again.predict(layers) == predictor.predict(layers)
    expected = [law(LayerCounts.of(layer), Load()) for layer in layers]
    assert np.median(np.abs(np.array(again.predict(layers).ms) / expected - 1.0)) < 0.15


def test_the_predictor_reports_untrained_layers(taught: Predictor) -> None:
    predictor = taught

    def unpredicted(module, load=None, at=None, shape=SHAPE) -> str:
        return "; ".join(predictor.predict(layers_of(trace_for(module, shape, target())), load, at).unpredicted)

    assert unpredicted(Small(8), Load("dnn", 2), target()) == ""
    assert "it was not trained for interpolation layers" in unpredicted(torch.nn.Upsample(scale_factor=2.0))
    assert "trained" in unpredicted(Small(512))
    corners = TrainedRange(samples=2, sizes=((10, 10, 10, 10), (10**8, 10**8, 10**8, 10**8)))
    apart = predictor.model_copy(update={"seen": {"convolution": corners}})
    (reason,) = apart.predict(layers_of(trace_for(torch.nn.Conv2d(3, 2, 3), SHAPE, target()))).unpredicted
    assert "no trained layer is within a factor of 2" in reason  # inside every range, but far from every trained layer
    assert "a load of 9 x dnn exceeds the highest trained level, 2" in unpredicted(Small(8), Load("dnn", 9))
    assert "a load of 1 x memory exceeds the highest trained level, 0" in unpredicted(Small(8), Load("memory", 1))
    assert "trained with backend eager; this is torchscript" in unpredicted(Small(8), at=target("torchscript"))
    other = predictor.model_copy(update={"device": "Orin, 16 SMs; fp16"})
    layers = layers_of(trace_for(Small(8), SHAPE, target()))
    assert "trained on 'Orin, 16 SMs; fp16'; this is '" in other.predict(layers, None, target()).unpredicted[0]


def test_cutting_by_predicted_times_or_by_measured_ones_if_there_is_no_prediction(
    caplog: pytest.LogCaptureFixture, taught: Predictor
) -> None:
    predictor = taught
    traced = trace_for(Small(8), SHAPE, target())
    costs, unpredicted = predicted_costs(predictor, traced, target(), measured=lambda: pytest.fail("measured"))
    assert unpredicted == ()
    stages = cut_graph(traced.graph_module, 2, costs=costs)
    total = sum(predictor.predict(layers_of(traced)).ms)
    assert sum(stage.cost_s for stage in stages) == pytest.approx(total / 1e3)

    def alike(node) -> float:
        return 1.0

    other = trace_for(Small(512), SHAPE, target())
    costs, unpredicted = predicted_costs(predictor, other, target(), measured=lambda: alike)
    assert costs is alike
    assert "layers are measured, because the predictor does not cover them" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: [], "not a predictor"),
        (lambda content: {**content, "format": "pickle"}, "not a predictor"),
        (lambda content: {**content, "extra": 1}, "extra"),
        (lambda content: {**content, "flops_per_s": -1.0}, "flops_per_s"),
        (lambda content: {**content, "model": {"regressor": "oracle"}}, "model"),
        (lambda content: {**content, "model": {"regressor": "linear", "weights": {"pooling": [1.0]}}}, "weights of"),
        (
            lambda content: {**content, "model": {"regressor": "trees", "base": 0.0, "rate": 0.1, "trees": [
                {"feature": [0, 0], "threshold": [0.0, 0.0], "left": [0, -1], "right": [1, -1], "value": [0.0, 0.0]}]}},
            "node 0 of a tree has the children 0 and 1",
        ),
        (
            lambda content: {**content, "model": {"regressor": "trees", "base": 0.0, "rate": 0.1, "trees": [
                {"feature": [0], "threshold": [], "left": [-1], "right": [-1], "value": [0.0]}]}},
            "differ in length",
        ),
    ],
)  # fmt: skip
def test_a_bad_predictor_file_is_refused(change, message: str, tmp_path: Path, taught: Predictor) -> None:
    path = tmp_path / "predictor.json"
    write_predictor(path, taught)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ProfileError, match=f"predictor.json: .*{message}"):
        read_predictor(path)


def test_files_of_format_1_are_read_for_cpus_only(tmp_path: Path, taught: Predictor) -> None:
    path = tmp_path / "predictor.json"
    old = {**json.loads(taught.model_dump_json()), "format": "multi_dnn_ros predictor 1"}
    path.write_text(json.dumps(old))
    layers = layers_of(trace_for(Small(8), SHAPE, target()))
    assert read_predictor(path).predict(layers, Load("dnn", 2)) == taught.predict(layers, Load("dnn", 2))
    path.write_text(json.dumps({**old, "cores": 0}))
    with pytest.raises(ProfileError, match=r"predictor.json: .*format 1 counts a GPU's streams differently"):
        read_predictor(path)


def test_a_slice_is_predicted_by_its_own_limits(few_trees: None) -> None:
    """On half of the SMs, layers take twice as long; an untrained share is named."""
    half = dataclasses.replace(
        SETTING, sms=66, flops_per_s=SETTING.flops_per_s / 2, bytes_per_s=SETTING.bytes_per_s / 2
    )
    sliced = [dataclasses.replace(row, setting=half, ms=2 * row.ms) for row in table()]
    with pytest.raises(ProfileError, match=r"only slices, of 66 SMs; .*--slices 0,66"):
        learn(sliced)
    predictor = learn([*table(), *sliced])
    assert predictor.slices[66].flops_per_s == half.flops_per_s == predictor.flops_per_s / 2
    assert {"models, without load", "models, without load, on 66 SMs"} < {of.held_out for of in predictor.scores}
    layers = layers_of(trace_for(Small(8), SHAPE, target()))
    whole, sliced_half, other = (
        predictor.predict(layers, target=dataclasses.replace(target(), sms=sms)) for sms in (0, 66, 16)
    )
    assert sum(sliced_half.ms) == pytest.approx(2 * sum(whole.ms), rel=0.2)
    assert (whole.unpredicted, sliced_half.unpredicted) == ((), ())
    assert other.unpredicted == ("it was not trained for 16 SMs; trained shares: 66",)


def test_the_time_of_a_tiled_dnn_is_that_of_all_tiles_of_an_image() -> None:
    """In milliseconds: a thousandth of the floating-point operations."""

    def predict(layers, load, target) -> Prediction:
        return Prediction(tuple(LayerCounts.of(layer).flops / 1e3 for layer in layers), ())

    def alone_ms(tiles: int) -> float:
        images = torch.zeros(tiles, *SHAPE[1:])
        dnn = SimpleNamespace(
            module=Small(), example_inputs=lambda: (images,), inputs=lambda image: (images,),
            results=lambda outputs, size: None, view=SimpleNamespace(tiles=tiles),
        )  # fmt: skip
        image = np.zeros((16, 16, 3), np.uint8)
        services, _ = predicted_services(
            {"dnn": dnn}, SimpleNamespace(predict=predict), {"dnn": target()}, 1, {"dnn": image}
        )
        return services["dnn"].alone_ms

    one = sum(LayerCounts.of(layer).flops for layer in layers_of(trace_for(Small(), SHAPE, target()))) / 1e3
    assert alone_ms(1) >= one
    assert alone_ms(4) >= 4 * one  # plus preprocessing and decoding, which are measured
