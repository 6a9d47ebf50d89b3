"""What priorities do for an important DNN's latency among others on a GPU. CPU twins: test/engine/test_gates.py."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from gpu_stages import GPU

from multi_dnn_ros.backends import Shared, Tensors
from multi_dnn_ros.backends.captured_network import CapturedNetwork
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.gates import Gate
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
    gate = Gate()
    shared = Shared(gate=gate, reduce=lambda outputs: (outputs[0][0, :1],))
    layers = [Products(side, kernels // jobs) for _ in range(jobs)]
    (network,) = CudaGraph(single_launch=True).prepare(layers, (torch.zeros(1, side, side, device=GPU),), GPU, shared)
    assert isinstance(network, CapturedNetwork)
    return DnnTask(
        name, (name,), lambda image: network.inputs, (), lambda outputs, size: None, networks={1: network}, gate=gate
    )


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
    engine = Engine([important, *others], device=GPU, on_result=on_result, **kwargs)
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


def test_gates_hold_the_others_back_while_an_important_frame_runs() -> None:
    """Under fifo the stream's priority alone has to do it, on a GPU that each job of the others fills."""
    others = [make_task(f"other{number}", 2048, 16, 8) for number in range(OTHERS)]
    important = make_task("important", 1024, 40, 4)
    found = {}
    for policy in ("fifo", "priority"):
        with busy(important, others, policy=policy) as (engine, results):
            engine.update("important", priority=10)
            found[policy] = p99_ms(engine, results)
    print(f"p99 {found['fifo']:.2f} ms by the stream's priority, {found['priority']:.2f} ms with gates")
    assert found["priority"] < found["fifo"]
