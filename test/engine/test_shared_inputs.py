"""DNNs with equal preprocessing share its result on a CPU: a frame is preprocessed once for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_fakes import WAIT, Recorder, frame, task

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage
from multi_dnn_ros.engine import DnnTask, DropReason, Engine
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.flat_parameters import to_config

Start = Callable[..., Engine]


class Counted:
    """A preprocessing function that counts its calls. fails: numbers of the calls in which it raises."""

    def __init__(self, *fails: int) -> None:
        self.calls = 0
        self._fails = fails
        self._lock = threading.Lock()

    def __call__(self, image: torch.Tensor) -> Tensors:
        with self._lock:
            self.calls += 1
            number = self.calls
        if number in self._fails:
            raise ValueError(f"call {number}")
        return (image.to(torch.float32).mean().reshape(1),)


def dnns(preprocess: Counted, *keys: object) -> list[DnnTask]:
    return [replace(task(name), preprocess=preprocess, input_key=each) for name, each in zip("abc", keys, strict=False)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("keys", "calls"), [(("x", "x", "x"), 1), (("x", "x", "y"), 2), ((None, None, None), 3)])
def test_a_frame_is_preprocessed_once_for_equal_keys(
    start: Start, recorder: Recorder, workers: int, keys: tuple[object, ...], calls: int
) -> None:
    preprocess = Counted()
    engine = start(*dnns(preprocess, *keys), workers=workers)
    for value in (1, 2, 3):
        engine.offer(frame("front", value))
        assert engine.wait_idle(WAIT)
    assert preprocess.calls == 3 * calls
    found = sorted((result.dnn, result.output[0]) for result in recorder.results)
    assert found == [(name, value + 2.0) for name in "abc" for value in (1, 2, 3)]  # each of two jobs adds 1


def test_an_error_in_preprocessing_counts_only_for_the_dnn_that_ran_it(start: Start, recorder: Recorder) -> None:
    preprocess = Counted(1)
    engine = start(*dnns(preprocess, "x", "x"), workers=1)
    engine.offer(frame("front", 1))
    assert engine.wait_idle(WAIT)
    assert [(drop.reason, drop.message) for drop in recorder.drops] == [
        (DropReason.DNN_ERROR, "job 1: ValueError: call 1")
    ]
    assert [result.output[0] for result in recorder.results] == [3.0]
    assert preprocess.calls == 2


@pytest.mark.parametrize(
    ("second", "shared"),
    [
        ({}, True),
        ({"score_threshold": 0.7}, True),
        ({"resize": "stretch"}, False),
        ({"color": "bgr"}, False),
        ({"mean": [0.5, 0.5, 0.5]}, False),
        ({"crop": [0.0, 0.5, 1.0, 0.5]}, False),
        ({"backend": "eager"}, False),
    ],
)
def test_built_dnns_share_equal_inputs(exported: str, second: dict[str, Any], shared: bool) -> None:
    flat: dict[str, Any] = {"device": "cpu", "dnns": ["a", "b"]}
    for name, others in (("a", {}), ("b", second)):
        base = {"role": "object", "model": exported, "decoder": "yolo", "labels": ["car", "truck"], "jobs": 2}
        flat |= {f"dnn.{name}.{key}": value for key, value in (base | others).items()}
    first, other = build(to_config(flat)).tasks
    assert (first.input_key is not None, other.input_key is not None) == (shared, shared)
    if not shared:
        return
    assert first.input_key == other.input_key
    image = (np.arange(48 * 64 * 3) % 251).astype(np.uint8).reshape(48, 64, 3)
    inputs = first.preprocess(image)
    np.testing.assert_array_equal(inputs[0], other.preprocess(image)[0])
    before = inputs[0].copy()
    for each in (first, other):
        carried = inputs
        for stage in each.stages:
            assert isinstance(stage, SessionStage)
            carried = stage(carried)
    np.testing.assert_array_equal(inputs[0], before)  # a session only reads its inputs
