"""Several images at once on a GPU: results, memory, the engine. CPU twins: test/backends/test_batches, test/engine."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_stages import EXAMPLE, GPU
from torch import nn

from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.batches import prepare_batches, repeat_inputs
from multi_dnn_ros.engine import DnnTask, Engine, Frame, Result
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import choose_backend
from multi_dnn_ros.settings.flat_parameters import to_config

WAIT = 60.0


def ready_for(module: nn.Module, sizes: tuple[int, ...], backend: str = "cuda_graph", jobs: int = 3) -> dict:
    chains = {size: cut_module(module, repeat_inputs(EXAMPLE, size), jobs, fold_batch_norm=True) for size in sizes}
    return prepare_batches(choose_backend(backend, GPU, "fp16", dnn="a"), chains, EXAMPLE, GPU, 1e-2)


class Wide(nn.Module):
    """Weights of 200 MB at fp16, and next to nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Sequential(nn.Conv2d(3, 64, 8, stride=8), nn.BatchNorm2d(64))
        self.linear = nn.Linear(64 * 12 * 16, 8192)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.linear(self.convolution(image).flatten(1))


def test_weights_are_held_once_for_all_sizes() -> None:
    def allocated(sizes: tuple[int, ...]) -> int:
        gc.collect()
        before = torch.cuda.memory_allocated(GPU)
        ready = ready_for(module, sizes, jobs=2)
        gc.collect()
        assert len(ready) == len(sizes)
        return torch.cuda.memory_allocated(GPU) - before

    torch.manual_seed(0)
    module = Wide().eval()
    weights = sum(parameter.numel() for parameter in module.parameters()) * torch.float16.itemsize
    one, three = allocated((1,)), allocated((1, 2, 4))
    assert weights <= one < 1.5 * weights
    assert three - one < 0.25 * weights


@pytest.mark.parametrize(
    ("dnns", "precision", "tolerance"),
    [
        (["lane"], "auto", 1e-2),
        (["lane", "object"], "fp16", 2e-3),
    ],  # auto may mean TF32; fp16: a few units in the last place
)
def test_cameras_that_share_inferences_get_the_results_of_none_shared(
    dnns: list[str], precision: str, tolerance: float
) -> None:
    """Three cameras at full speed: batches of one, two and three (filled up to four) follow one another."""
    cameras = ["front", "left", "rear", "right"]
    flat = {"device": "cuda:0", "cameras": cameras, "dnns": dnns}
    for dnn in dnns:
        flat |= {f"dnn.{dnn}.{name}": value for name, value in {"max_batch": 4, "precision": precision}.items()}
    pipeline = build(to_config(flat))
    assert [sorted(task.networks) for task in pipeline.tasks] == [[1, 2, 4]] * len(dnns)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (240, 320, 3), np.uint8) for _ in range(60)]

    def served(tasks: list[DnnTask]) -> dict[tuple[str, int], Result]:
        found: dict[tuple[str, int], Result] = {}
        raw = [replace(task, decode=lambda outputs, size: tuple(out.clone() for out in outputs)) for task in tasks]
        engine = Engine(
            raw,
            device=pipeline.device,
            on_result=lambda result: found.__setitem__((result.dnn, result.frame.stamp_ns), result),
        )
        engine.start()
        for number, image in enumerate(images):
            assert engine.submit(Frame(cameras[number % 3], number, image), WAIT)
        assert engine.wait_idle(WAIT)
        assert engine.stop(WAIT) == []
        return found

    together = served(list(pipeline.tasks))
    alone = served([replace(task, networks={1: task.networks[1]}) for task in pipeline.tasks])
    assert len(together) == len(alone) == 60 * len(dnns)
    assert max(result.timing.batch for result in together.values()) > 1
    for key, expected in alone.items():
        check_agreement(together[key].output, expected.output, tolerance)
        assert together[key].timing.compute_ns > 0
