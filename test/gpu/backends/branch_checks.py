"""What holds for stages with branches on several streams, whether their segments are compiled or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpu_stages import GPU
from torch import nn

from multi_dnn_ros.backends import Stage, StaticStage, Tensors
from multi_dnn_ros.backends.branch_choice import measure_in_turn
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.static_stages import streams_of


class Wide(nn.Module):
    """Two blocks of four branches of different length and memory, with views and a shortcut over a block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(self._block() for _ in range(2))
        self.head = nn.Linear(32, 10)

    @staticmethod
    def _block() -> nn.ModuleList:
        def branch(length: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for index in range(length):
                layers += [nn.Conv2d(32 if index == 0 else 8, 8, 3, padding=1), nn.ReLU()]
            return nn.Sequential(*layers)

        return nn.ModuleList(branch(length) for length in (1, 2, 3, 5))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.relu(self.first(image))
        for block in self.blocks:
            values = torch.cat([branch(values) for branch in block], 1) + values
        left, right = torch.chunk(values, 2, 1)
        return self.head(values.mean((2, 3))), (left.transpose(2, 3) * right.transpose(2, 3)).sum(1)


def many_replays_are_bit_equal(stages: Sequence[Stage], inputs: Sequence[Tensors]) -> None:
    """With changing inputs: memory that is reused too early would be overwritten by another branch in some of them."""
    with torch.inference_mode():
        expected = [_copies(_through(stages, each)) for each in inputs]
        for _ in range(50):
            for each, right in zip(inputs, expected, strict=True):
                assert _equal(_through(stages, each), right)


def replays_back_to_back_are_bit_equal(stage: Stage, inputs: Tensors, others: Tensors) -> None:
    """Without waiting on the host: a replay must not start before the streams of the previous one have joined."""
    with torch.inference_mode():
        expected = _copies(stage(inputs))
        for _ in range(200):
            stage(others)
            results = _copies(stage(inputs))
        torch.cuda.synchronize(GPU)
        assert _equal(results, expected)


def replays_allocate_nothing(stage: Stage, inputs: Tensors) -> None:
    with torch.inference_mode():
        stage(inputs)
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        for _ in range(20):
            stage(inputs)
        torch.cuda.synchronize(GPU)
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before


def is_not_slower(chosen: StaticStage, serial: StaticStage) -> None:
    """The medians of alternating runs; prints them."""
    calls = {1: lambda: serial(serial.inputs), 2: lambda: chosen(chosen.inputs)}
    with torch.inference_mode():
        times = measure_in_turn(calls, gpu_ms, 15)
    medians = {which: sorted(ms)[len(ms) // 2] for which, ms in times.items()}
    print(f"serial {medians[1]:.4f} ms, {streams_of(chosen)} streams {medians[2]:.4f} ms")
    assert medians[2] < 1.1 * medians[1]


def _through(stages: Sequence[Stage], carried: Tensors) -> Tensors:
    for stage in stages:
        carried = stage(carried)
    return carried


def _copies(tensors: Tensors) -> Tensors:
    return tuple(tensor.clone() for tensor in tensors)


def _equal(results: Tensors, expected: Tensors) -> bool:
    return all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
