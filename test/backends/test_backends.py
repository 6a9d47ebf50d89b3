"""The stages of a DNN compute the same with every backend."""

from __future__ import annotations

import threading

import pytest
import torch
import torchvision
from small_builtin import small_builtin

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.backends.registry import BACKENDS, BackendRequest
from multi_dnn_ros.models.cut import cut_graph, cut_module
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.serving.choices import ConfigError, backend_name, choose_backend

CPU = torch.device("cpu")


@pytest.fixture(params=["eager", "onnxruntime"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS.get(request.param).factory(BackendRequest(CPU, 1e-4))


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        return inputs


@pytest.mark.parametrize(("missing", "on_gpu"), [("", "inductor"), ("needs Triton", "cuda_graph")])
def test_auto_is_what_serves_fastest_there(missing: str, on_gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.serving.choices.missing_compiler", lambda device: missing)
    assert type(choose_backend("auto", CPU)) is OnnxRuntime
    assert backend_name("auto", torch.device("cuda:0")) == on_gpu
    assert type(choose_backend("eager", CPU)) is Eager
    with pytest.raises(ConfigError, match=r"dnn.<dnn>.backend is 'cuda_graph', but the device is cpu"):
        choose_backend("cuda_graph", CPU)


@pytest.fixture(scope="module")
def traced() -> tuple[torch.nn.Module, Tensors, torch.fx.GraphModule]:
    """A built-in DNN, example inputs and its graph, which is the same for all backends and numbers of jobs."""
    module, example = small_builtin("object")
    return module, example, trace(module, example)


@pytest.mark.parametrize("jobs", [1, 5])
def test_built_in_dnns_compute_the_same_as_their_module(
    backend: Backend, jobs: int, traced: tuple[torch.nn.Module, Tensors, torch.fx.GraphModule]
) -> None:
    module, example, graph = traced
    stages = backend.prepare(cut_graph(graph, jobs), example, CPU)
    inputs = tuple(torch.rand_like(tensor) for tensor in example)
    with torch.inference_mode():
        expected = module(*inputs)
    (output,) = through(stages, inputs)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_stages_run_in_many_threads_at_the_same_time(backend: Backend) -> None:
    torch.manual_seed(0)
    module = torchvision.models.mobilenet_v3_small(weights=None).features[:4].eval()
    example = (torch.rand(1, 3, 64, 64),)
    stages = backend.prepare(cut_module(module, example, 3), example, CPU)
    inputs = [(torch.rand(1, 3, 64, 64),) for _ in range(24)]
    with torch.inference_mode():
        expected = [module(*each) for each in inputs]
    results: dict[int, torch.Tensor] = {}

    def run(first: int) -> None:
        for index in range(first, len(inputs), 4):
            results[index] = through(stages, inputs[index])[0]

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, right in enumerate(expected):
        torch.testing.assert_close(results[index], right, rtol=1e-4, atol=1e-5)
