"""What priorities do for an important DNN's latency among others on a GPU. CPU twins: test/engine/test_bound.py."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from gpu_stages import GPU

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.engine import DnnTask, Engine, Frame, Result

WAIT = 60.0
OTHERS = 6
IMAGE = np.zeros((4, 4, 3), np.uint8)


class Products(torch.nn.Module):
    """So many products of matrices in a chain."""

    def __init__(self, side: int, count: int) -> None:
        super().__init__()
        self.register_buffer("one", torch.eye(side))
        self.count = count

    def forward(self, carried: Tensors) -> Tensors:
        (value,) = carried
        for _ in range(self.count):
            value = value @ self.one
        return (value,)


def make_task(name: str, side: int, kernels: int, jobs: int) -> DnnTask:
    inputs = (torch.zeros(side, side, device=GPU),)
    stages = CudaGraph().prepare([Products(side, kernels // jobs) for _ in range(jobs)], inputs, GPU)
    return DnnTask(
        name, (name,), lambda image: inputs, stages, lambda outputs, size: None,
        condense=lambda outputs: (outputs[0][0, :1],), single_launch=single_launches({1: stages}),
    )  # fmt: skip


class Unseen(Frame):
    """Its image stays on the host."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.empty(0)


def frame(camera: str) -> Frame:
    return Unseen(camera, 0, IMAGE)


@contextmanager
def busy(important: DnnTask, others: list[DnnTask], **kwargs: object) -> Iterator[tuple[Engine, queue.Queue[Result]]]:
    """An engine in which each of the others always has a frame that waits; and the important one's results."""
    results: queue.Queue[Result] = queue.Queue()

    def on_result(result: Result) -> None:
        if result.dnn == important.name:
            results.put(result)
        elif not over:
            engine.offer(frame(result.dnn))

    over = False
    engine = Engine([important, *others], workers=1, device=GPU, on_result=on_result, **kwargs)
    engine.start()
    try:
        for task in others:
            assert engine.submit(frame(task.name), WAIT)
            assert engine.submit(frame(task.name), WAIT)
        yield engine, results
    finally:
        over = True
        assert engine.wait_idle(WAIT)
        assert engine.stop(WAIT) == []


def p99_ms(engine: Engine, results: queue.Queue[Result], frames: int = 60) -> float:
    """End to end; frames come at moments that have nothing to do with what the others do."""
    times = []
    for _ in range(frames):
        engine.offer(frame("important"))
        times.append(results.get(timeout=WAIT).timing.arrival_to_result_ns / 1e6)
        time.sleep(0.003)
    return float(np.percentile(times[5:], 99))


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_priority_changed_while_serving_takes_effect_on_captured_graphs(jobs: int) -> None:
    """There and back, by the streams alone: under fifo the queue's order is no help.

    jobs: with several, all of a frame are one launch, captured by itself.
    """
    important = make_task("important", 256, 40, jobs)
    with busy(important, [make_task(f"other{number}", 2048, 8, jobs) for number in range(OTHERS)]) as (engine, results):
        found = []
        for priority in (0, 10, 0):
            engine.update("important", priority=priority)
            found.append(p99_ms(engine, results))
    print(f"{jobs} jobs: p99 {found[0]:.2f} ms as one of equals, {found[1]:.2f} as the first, {found[2]:.2f} again")
    assert found[1] < 0.6 * min(found[0], found[2])


def test_the_bound_shortens_what_an_important_frame_waits_for() -> None:
    """With one job of the others at a time instead of six frames, on a GPU that each of these jobs fills."""
    others = [make_task(f"other{number}", 2048, 16, 8) for number in range(OTHERS)]
    important = make_task("important", 1024, 40, 4)
    found = {}
    for bound in (None, 1):
        with busy(important, others, policy="priority", max_launched=bound) as (engine, results):
            engine.update("important", priority=10)
            found[bound] = p99_ms(engine, results)
    print(f"p99 {found[None]:.2f} ms without a bound, {found[1]:.2f} ms with at most 1")
    assert found[1] < 0.6 * found[None]
