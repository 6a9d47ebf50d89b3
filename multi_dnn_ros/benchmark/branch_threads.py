"""The branches of a stage on several CPU threads: the plan of the streams, with a thread for each stream."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import fx

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.graph.branches import device_operations, origins
from multi_dnn_ros.graph.cut import GraphStage
from multi_dnn_ros.graph.nodes import attribute
from multi_dnn_ros.graph.stream_plan import Step, plan_streams


class ThreadedStage:
    """Runs a stage of a traced network on a CPU with one thread per stream of its plan. Close it after use.

    streams: threads at most; `threads` of them are used. of_operation: threads of each operation, set in each thread.
    """

    def __init__(self, stage: GraphStage, streams: int, of_operation: int) -> None:
        graph = stage.graph.graph
        plan = plan_streams(device_operations(stage.graph), streams)
        self.threads = plan.streams
        self._inputs = list(graph.find_nodes(op="placeholder"))
        self._constants = {node: attribute(stage.graph, node) for node in graph.nodes if node.op == "get_attr"}
        origin = origins(graph)
        self._views: dict[fx.Node, list[fx.Node]] = {node: [] for node in origin.values()}
        for node, source in origin.items():
            if node is not source:
                self._views[source].append(node)
        by_name = {node.name: node for node in origin}
        self._lanes: list[list[tuple[Step, fx.Node]]] = [[] for _ in range(plan.streams)]
        for step in plan.steps:
            self._lanes[step.stream].append((step, by_name[step.name]))
        self._signals = [step.name for step in plan.steps if step.signals]
        self._results: Any = graph.output_node().args[0]
        self._pools = [
            ThreadPoolExecutor(1, f"branch {lane}", torch.set_num_threads, (of_operation,))
            for lane in range(plan.streams)
        ]

    def __call__(self, carried: Tensors) -> Tensors:
        """The stage's outputs. Raises what an operation raises, after all threads have stopped."""
        values: dict[fx.Node, Any] = {**self._constants, **dict(zip(self._inputs, carried, strict=True))}
        for source in (*self._inputs, *self._constants):
            for node in self._views.get(source, ()):
                _compute(node, values)
        done = {name: threading.Event() for name in self._signals}
        failed = threading.Event()
        futures: list[Future[None]] = [
            pool.submit(self._run, lane, values, done, failed)
            for pool, lane in zip(self._pools, self._lanes, strict=True)
        ]
        for future in futures:
            future.exception()
        for future in futures:
            future.result()
        outputs: Tensors = fx.node.map_arg(self._results, values.__getitem__)
        return outputs

    def _run(
        self,
        lane: list[tuple[Step, fx.Node]],
        values: dict[fx.Node, Any],
        done: dict[str, threading.Event],
        failed: threading.Event,
    ) -> None:
        try:
            with torch.inference_mode():
                for step, node in lane:
                    for source in step.waits:
                        done[source].wait()
                    if failed.is_set():
                        return
                    _compute(node, values)
                    for view in self._views[node]:
                        _compute(view, values)
                    if step.signals:
                        done[step.name].set()
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


def _compute(node: fx.Node, values: dict[fx.Node, Any]) -> None:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    assert callable(node.target)
    values[node] = node.target(*args, **kwargs)
