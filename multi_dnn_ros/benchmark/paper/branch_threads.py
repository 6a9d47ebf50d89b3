"""Runs the branches of a stage on several CPU threads, one for each stream of the stage's plan."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.graph.branches import device_operations
from multi_dnn_ros.graph.cut import GraphStage
from multi_dnn_ros.graph.planned_graph import PlannedGraph, PlannedOperation, Values
from multi_dnn_ros.graph.stream_plan import plan_streams


class ThreadedStage:
    """Runs a stage of a traced network on a CPU with one thread per stream of its plan. Close it after use.

    streams: maximum number of threads; attribute `threads` is the number used. operation_threads: PyTorch's number of
    threads per operation.
    """

    def __init__(self, stage: GraphStage, streams: int, operation_threads: int) -> None:
        plan = plan_streams(device_operations(stage.graph), streams)
        self.threads = plan.streams
        self._planned = PlannedGraph(stage.graph, plan)
        self._operations_by_stream: list[list[PlannedOperation]] = [[] for _ in range(plan.streams)]
        for operation in self._planned.operations:
            self._operations_by_stream[operation.step.stream].append(operation)
        self._signals = [step.name for step in plan.steps if step.signals]
        self._pools = [
            ThreadPoolExecutor(1, f"branch {stream}", torch.set_num_threads, (operation_threads,))
            for stream in range(plan.streams)
        ]

    def __call__(self, carried: Tensors) -> Tensors:
        """The stage's outputs. Raises what an operation raises, after all threads have stopped."""
        values = self._planned.values(carried)
        for node in self._planned.views_of_inputs:
            self._planned.compute(node, values)
        done = {name: threading.Event() for name in self._signals}
        failed = threading.Event()
        futures: list[Future[None]] = [
            pool.submit(self._run, operations, values, done, failed)
            for pool, operations in zip(self._pools, self._operations_by_stream, strict=True)
        ]
        for future in futures:
            future.exception()
        for future in futures:
            future.result()
        return self._planned.results(values)

    def _run(
        self,
        operations: Sequence[PlannedOperation],
        values: Values,
        done: dict[str, threading.Event],
        failed: threading.Event,
    ) -> None:
        try:
            with torch.inference_mode():
                for operation in operations:
                    for source in operation.step.waits:
                        done[source].wait()
                    if failed.is_set():
                        return
                    for node in (operation.node, *operation.views):
                        self._planned.compute(node, values)
                    if operation.step.signals:
                        done[operation.step.name].set()
        except BaseException:
            failed.set()
            raise
        finally:
            if failed.is_set():
                for event in done.values():  # the other threads see `failed` next
                    event.set()

    def close(self) -> None:
        """End the threads."""
        for pool in self._pools:
            pool.shutdown()
