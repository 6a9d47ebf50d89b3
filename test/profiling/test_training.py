"""Distributed training by layers: traces, work, the link, failing processes. The command is in test/acceptance."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.profiling.processes import run_processes
from multi_dnn_ros.profiling.step_trace import layer_ranges, read_trace, uncovered_ms
from multi_dnn_ros.profiling.training import Work, _count_work

CPU = torch.device("cpu")
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda of: (of[0], of[0] + of[1])), max_size=8)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, seconds: tuple[float, float]) -> torch.Tensor:
        ctx.seconds = seconds[1]
        time.sleep(seconds[0])
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Sleeping(nn.Module):
    """Takes these seconds forward and backward, before what is in it."""

    def __init__(self, forward_s: float, backward_s: float, *inner: nn.Module) -> None:
        super().__init__()
        self.seconds, self.inner = (forward_s, backward_s), nn.Sequential(*inner)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.inner(Slow.apply(values, self.seconds))


def test_times_belong_to_the_innermost_module() -> None:
    network = nn.Sequential(nn.Linear(2, 2), Sleeping(0.1, 0.2, Sleeping(0.05, 0.15)), nn.Linear(2, 1))
    numbers = {part: number for number, part in enumerate(network.modules())}
    outer, inner = (numbers[part] for part in numbers if isinstance(part, Sleeping))
    with layer_ranges(network), profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        network(torch.ones(1, 2)).sum().backward()
    trace = read_trace(profiler.events(), on_gpu=False)
    for found, expected in ((trace.forward_ms, {outer: 100, inner: 50}), (trace.backward_ms, {outer: 200, inner: 150})):
        for number, ms in expected.items():
            assert ms <= found[number] < ms + 45  # less than the other one more
    assert trace.backward_ms[numbers[network[0]]] > 0.0
    assert (trace.messages, trace.exposed_ms) == ((), 0.0)
    assert trace.sum_ms == pytest.approx(sum(trace.forward_ms.values()) + sum(trace.backward_ms.values()))


@given(SPANS, SPANS)
def test_communication_is_exposed_where_nothing_else_runs(
    messages: list[tuple[int, int]], computing: list[tuple[int, int]]
) -> None:
    ours, theirs = (set().union(*(range(*span) for span in spans)) for spans in (messages, computing))
    assert uncovered_ms(messages, computing) == len(ours - theirs)


def test_work_is_what_a_hand_counts() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    module.register_parameter("spare", nn.Parameter(torch.ones(1)))
    work, unused = _count_work("net", module, lambda: module(torch.rand(2, 3, 8, 8)).sum())
    flops = 2 * 2 * (4 * 6 * 6) * (3 * 9)
    images, weights, maps = 4 * 2 * 3 * 64, 4 * 4 * 3 * 9, 4 * 2 * 4 * 36
    # The gradient of the images is not computed.
    assert work[1] == (Work(flops, images + weights + maps), Work(flops, images + 2 * weights + maps))
    assert work[3][0].flops == 2 * 2 * 144 * 5
    assert work[3][1].flops == 2 * work[3][0].flops
    assert work[0] == (Work(), Work())
    assert unused == ["spare"]
    assert not module.spare.requires_grad
    with pytest.raises(ModelError, match="net cannot be trained: its outputs do not depend on"):
        _count_work("net", module, lambda: torch.ones(()))


def fails(device: torch.device, progress: Any, how: str) -> None:
    """Process 1 fails, while the other one waits for it."""
    if torch.distributed.get_rank() == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise (ValueError if how == "expected" else TypeError)("wrong\nsecond line")
    torch.distributed.barrier()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("killed", "process 1 of 2 was killed by SIGKILL (the kernel does this when memory runs out)"),
        ("error", "process 1 of 2 failed: TypeError: wrong"),
        ("expected", "process 1 of 2 failed: ValueError: wrong"),
    ],
)
@pytest.mark.usefixtures("forked_spawns")
def test_a_process_that_fails_ends_all_with_one_line(how: str, message: str) -> None:
    with pytest.raises(CommandError) as error:
        run_processes(partial(fails, how=how), 2, CPU, lambda done, total: None)
    assert str(error.value) == message


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("multi_dnn_ros.backends.host.has_gpu_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["profile", "training", "builtin:lane", "--processes", "2", "--device", "cuda"]) == 2
    assert "--processes is 2, but PyTorch sees 1 GPUs here" in capsys.readouterr().err
