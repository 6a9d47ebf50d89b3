"""Jobs by their layers' times on a GPU: the bound kept by captured jobs, predictions for what is served there.

The CPU twins are in test/planning/test_job_plan.py.
"""

from __future__ import annotations

import torch
from profiling_fakes import taught

from multi_dnn_ros.planning.layer_chain import trace_on_cpu
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import timing_target
from multi_dnn_ros.serving.configure import measure_fit
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig

GPU = torch.device("cuda", 0)


def configured(**settings: object) -> NodeConfig:
    """One heavy DNN, so that its layers are long against the clock."""
    flat = {"device": "cuda:0", "dnns": ["object"], "dnn.object.model": "torchvision:ssd300_vgg16"}
    return to_config({**flat, "dnn.object.weights": "random", **settings})


def test_a_bound_makes_more_segments_of_one_graph() -> None:
    """At fp16, where convolutions are fused with what is behind; predictions below are for float32."""
    settings = {"dnn.object.precision": "fp16"}
    (whole,) = build(configured(blocking_ms=1000.0, **settings)).tasks
    assert whole.networks[1].segments == 1
    whole_ms = whole.remaining_ns[0] / 1e6
    (shorter,) = build(configured(blocking_ms=0.4 * whole_ms, **settings)).tasks
    assert shorter.networks[1].segments >= 3


def test_prediction_on_the_gpu_judges() -> None:
    config = configured()
    target = timing_target("object", config.dnns["object"], GPU)
    dnn = build(config).dnns["object"]  # whose weights are on the GPU now
    shape = dnn.example_inputs()[0].shape
    layers = trace_on_cpu(dnn.module, (torch.rand(shape),)).layers()
    predictor = taught(layers, 0.1, device=target.device_name, backend="cuda_graph", threads=0)
    pipeline = build(config)
    timed = sum(layer.work.kind != "view" for layer in layers)
    fit = measure_fit(config, pipeline, {"front": 1.0}, predictor.predict_dnn)
    assert not fit.unpredicted
    assert fit.verdict().needs["object"] > timed * 0.1e-3
