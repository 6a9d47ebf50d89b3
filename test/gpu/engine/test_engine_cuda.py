"""The engine on a GPU: the CPU's results, a stream a DNN, memory given back. The CPU twins are in test/engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multi_dnn_ros.backends import Backend
from multi_dnn_ros.backends.captured_network import as_network
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.engine import DnnTask, Engine, Frame, Result
from multi_dnn_ros.models.cut import cut_module

both = pytest.mark.parametrize("backend", [Eager(), CudaGraph(single_launch=True)], ids=["eager", "cuda_graph"])
SIZE = (96, 128)
WAIT = 60.0


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = []
    for channels in (3, 32, 32, 32):
        layers += [torch.nn.Conv2d(channels, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 4, 1)).eval()


def preprocess(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (image.permute(2, 0, 1).unsqueeze(0).float() / 255,)


def images(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (count, *SIZE, 3), dtype=np.uint8))


def make_task(name: str, seed: int, device: torch.device, backend: Backend, jobs: int = 4) -> DnnTask:
    example = (torch.zeros(1, 3, *SIZE),)
    stages = backend.prepare(cut_module(network(seed), example, jobs), example, device)
    return DnnTask(
        name, ("front",), preprocess, (), lambda outputs, size: outputs[0].numpy().copy(),
        networks={1: as_network(stages, 1, None)},
    )  # fmt: skip


@both
def test_results_equal_the_cpu_under_load(backend: Backend):
    """Six DNNs at full speed: no tensor is reused too early."""
    device = torch.device("cuda", 0)
    results: dict[tuple[str, int], np.ndarray] = {}
    compute_ns: list[int] = []

    def on_result(result: Result) -> None:
        results[result.dnn, result.frame.stamp_ns] = result.output
        compute_ns.append(result.timing.compute_ns)

    tasks = [make_task(f"dnn{n}", n, device, backend) for n in range(6)]
    engine = Engine(tasks, device=device, on_result=on_result)
    engine.start()
    frames = images(100)
    for number, image in enumerate(frames):
        engine.submit(Frame("front", number, image))
    assert engine.wait_idle(WAIT)
    assert engine.stop(WAIT) == []
    assert len(results) == 600
    with torch.inference_mode():
        for n in range(6):
            model = network(n)
            for number in range(0, 100, 7):
                expected = model(*preprocess(torch.from_numpy(frames[number]))).numpy()
                np.testing.assert_allclose(results[f"dnn{n}", number], expected, atol=2e-3)
    assert all(ns > 0 for ns in compute_ns)  # GPU time, from events


class WaitsForTheGpu(torch.nn.Module):
    """Cannot be captured: looks at a value."""

    def forward(self, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (carried[0] * (2.0 if float(carried[0].sum()) > 0 else 3.0),)


class AddsOne(torch.nn.Module):
    def forward(self, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (carried[0] + 1,)


def test_a_stage_that_cannot_be_captured_runs_eager_between_others_that_can(caplog: pytest.LogCaptureFixture):
    device = torch.device("cuda", 0)
    with caplog.at_level("WARNING"):
        stages = CudaGraph().prepare([AddsOne(), WaitsForTheGpu(), AddsOne()], (torch.ones(4),), device)
    assert "job 2 of the DNN runs eager" in caplog.text
    for value in (5.0, -9.0):
        carried = (torch.full((4,), value, device=device),)
        with torch.inference_mode():
            for stage in stages:
                carried = stage(carried)
        expected = (value + 1) * (2.0 if value > 0 else 3.0) + 1
        torch.testing.assert_close(carried[0].cpu(), torch.full((4,), expected))
