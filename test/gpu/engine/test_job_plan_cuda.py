"""Jobs by their layers' times on a GPU: the bound kept by captured jobs, predictions for what is served there.

The CPU twins are in test/planning/test_job_plan.py and test/graph/test_job_length.py.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from profiling_fakes import taught

from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.pipeline.choices import timing_target
from multi_dnn_ros.pipeline.fit_check import measure_fit
from multi_dnn_ros.planning.job_plan import launch_cost_s
from multi_dnn_ros.planning.measure import trace_for
from multi_dnn_ros.planning.predictor import write_predictor
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig

GPU = torch.device("cuda", 0)


def configured(**settings: object) -> NodeConfig:
    """One heavy DNN, so that its layers are long against the clock."""
    flat = {"device": "cuda:0", "dnns": ["object"], "dnn.object.model": "torchvision:ssd300_vgg16"}
    return to_config({**flat, "dnn.object.weights": "random", **settings})


def job_ms(task: DnnTask) -> list[float]:
    """Median device time of each job, one after another."""
    times: list[list[float]] = []
    image = torch.zeros((480, 640, 3), dtype=torch.uint8, device=GPU)
    with torch.inference_mode():
        for _ in range(20):
            carried = task.preprocess(image)
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(task.stages) + 1)]
            torch.cuda.synchronize(GPU)
            marks[0].record()
            for stage, mark in zip(task.stages, marks[1:], strict=True):
                carried = stage(carried)
                mark.record()
            torch.cuda.synchronize(GPU)
            times.append([begin.elapsed_time(end) for begin, end in pairwise(marks)])
    return [statistics.median(of) for of in zip(*times, strict=True)]


def test_captured_jobs_keep_to_the_bound() -> None:
    """At fp16, where convolutions are fused with what is behind; predictions below are for float32."""
    settings = {"dnn.object.precision": "fp16"}
    lines: list[str] = []
    (task,) = build(configured(blocking_ms=0.5, **settings), lines.append).tasks
    whole_ms = task.remaining_ns[0] / 1e6
    (line,) = [line for line in lines if line.startswith("object: ")]
    assert line.startswith(f"object: {len(task.stages)} job")
    assert "of 0.5 allowed" in line
    (shorter,) = build(configured(blocking_ms=0.4 * whole_ms, **settings)).tasks
    assert len(shorter.stages) >= 3
    assert max(job_ms(shorter)) < 0.4 * whole_ms * 1.5  # an idle GPU keeps to it; this one may not be idle
    (whole,) = build(configured(blocking_ms=1000.0, **settings)).tasks
    assert len(whole.stages) == 1


def test_launching_a_captured_job_is_cheap() -> None:
    target = timing_target("object", configured().dnns["object"], GPU)
    assert target.served_by == "cuda_graph"
    assert 1e-7 < launch_cost_s(target) < 1e-3


def test_prediction_on_the_gpu_cuts_and_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured()
    target = timing_target("object", config.dnns["object"], GPU)
    dnn = build(config).dnns["object"]  # whose weights are on the GPU now
    shape = dnn.example_inputs()[0].shape
    layers = trace_for(dnn.module, (torch.rand(shape),), target).layers()
    predictor = taught(layers, 0.1, device=target.device_name, backend="cuda_graph", threads=0)
    write_predictor(tmp_path / "p.json", predictor)
    monkeypatch.setattr("multi_dnn_ros.planning.job_plan.measure", lambda *args, **kwargs: pytest.fail("measured"))
    monkeypatch.setattr("multi_dnn_ros.pipeline.fit_check.measure_alone", lambda *args: pytest.fail("measured"))
    config = configured(predictor=str(tmp_path / "p.json"))
    lines: list[str] = []
    pipeline = build(config, lines.append)
    (line,) = [line for line in lines if line.startswith("object: ")]
    assert line.endswith("by predicted layer times")
    timed = sum(layer.work.kind != "view" for layer in layers)
    assert pipeline.tasks[0].remaining_ns[0] > timed * 0.1e6
    verdict = measure_fit(config, pipeline, {"front": 1.0}, pipeline.predictor).verdict()
    assert not verdict.unpredicted
    assert verdict.needs["object"] > timed * 0.1e-3
