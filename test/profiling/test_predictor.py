"""A predictor: a file of numbers that reports what it was not trained for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from profiling_fakes import Small, machine, target, taught, traced

from multi_dnn_ros.profiling.predictor import (
    Forest,
    Load,
    ProfileError,
    Tree,
    linear_features,
    read_predictor,
    tree_features,
    write_predictor,
)

LIMITS = machine().limits
WORKS = [layer.work for layer in traced().layers()]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    predictor = taught(traced().layers())
    write_predictor(tmp_path / "predictor.json", predictor)
    again = read_predictor(tmp_path / "predictor.json")
    assert again == predictor
    assert again.predict(WORKS, Load(), target()) == (14.0, ())


def test_the_linear_model_counts_loads_beside_the_layer_and_those_it_waits_for() -> None:
    (layer, *_) = traced().layers()
    rows = linear_features([(layer.work, Load()), (layer.work, Load("memory", 3))], LIMITS).reshape(2, 7, 3)
    arithmetic, moved, launch = layer.work.flops / 1e6, layer.work.moved / 1e6, 1.0
    assert rows[0].tolist() == [[arithmetic, moved, launch], *[[0.0] * 3] * 6]
    assert rows[1, 3].tolist() == [arithmetic, moved, launch]  # one thread runs beside the layer,
    assert rows[1, 4].tolist() == [2 * arithmetic, 2 * moved, 2.0]  # for two it waits


def test_the_forest_follows_its_trees() -> None:
    layers = traced().layers()
    questions = [(layer.work, Load()) for layer in layers]
    flops = tree_features(questions)[:, 0]
    middle = float(np.median(flops))
    split = Tree(feature=[0, 0, 0], threshold=[middle, 0, 0], left=[1, -1, -1], right=[2, -1, -1], value=[0, 0, 1])
    leaf = Tree(feature=[0], threshold=[0], left=[-1], right=[-1], value=[0])
    found = Forest(trees=[split, leaf]).predict(questions, LIMITS)
    alone = Forest(trees=[leaf]).predict(questions, LIMITS)
    assert found / alone == pytest.approx(np.where(flops <= middle, 1.0, np.exp(0.5)))


@pytest.mark.parametrize(
    ("changes", "module", "load", "reason"),
    [
        ({}, Small(), Load("dnn", 8), ""),
        ({}, torch.nn.Upsample(scale_factor=2.0), Load(), "it was not trained for interpolation layers"),
        ({}, Small(512), Load(), "convolution layer of 1,769,472 flops; trained range: 13,824 to 13,824"),
        ({}, Small(), Load("dnn", 9), "a load of 9 x dnn exceeds the highest trained level, 8"),
        ({}, Small(), Load("memory", 1), "a load of 1 x memory exceeds the highest trained level, 0"),
        ({"device": "Orin, 16 SMs; fp16"}, Small(), Load(), "it was trained on 'Orin, 16 SMs; fp16'; this is '"),
        ({"backend": "onnxruntime"}, Small(), Load(), "it was trained on 'onnxruntime'; this is 'eager'"),
    ],
)
def test_what_was_not_trained_is_named(changes: dict, module: torch.nn.Module, load: Load, reason: str) -> None:
    predictor = taught(traced().layers(), **changes)
    _, reasons = predictor.predict([layer.work for layer in traced(module).layers()], load, target())
    assert "; ".join(reasons).startswith(reason)
    assert bool(reasons) == bool(reason)
    served = replace(target(), served_by="inductor")
    assert "this is 'inductor'" in "; ".join(predictor.predict([], Load(), served)[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: [], "not a predictor"),
        (lambda content: {**content, "format": "multi_dnn_ros predictor 2"}, "not a predictor"),
        (lambda content: {**content, "extra": 1}, "extra"),
        (lambda content: {**content, "flops_per_s": -1.0}, "flops_per_s"),
        (lambda content: {**content, "model": {"regressor": "oracle"}}, "model"),
        (lambda content: {**content, "model": {"regressor": "linear", "weights": {"pooling": [1.0]}}}, "pooling"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(change: Callable[[dict], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "predictor.json"
    write_predictor(path, taught(traced().layers()))
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ProfileError, match=f"predictor.json: .*{message}"):
        read_predictor(path)
