"""The stages of a DNN as sessions of ONNX Runtime that share their weights."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from multi_dnn_ros.backends import Shared
from multi_dnn_ros.backends.host import CPU as HOST
from multi_dnn_ros.backends.onnx_providers import CPU, Choice, provider_session, session_options
from multi_dnn_ros.backends.thread_priority import call_at_kept_priority
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, Part
from multi_dnn_ros.models.onnx_graph import memory_file

#: Weights of at least this size are stored outside the sessions, which can then share them.
_MIN_SHARED_BYTES = 1024
#: ONNX Runtime accepts one allocator per device and process, and raises an error for a second one.
_arena_lock = threading.Lock()
_arena_registered = False
_ON_CPU = Choice(CPU)


def make_sessions(
    model: onnx.ModelProto,
    jobs: int = 1,
    *,
    costs_s: Sequence[float] | None = None,
    limit_s: float = float("inf"),
    shared: Shared | None = None,
    single_launch: bool = True,
    choice: Choice = _ON_CPU,
    dnn: str = "",
) -> tuple[SessionStage, ...]:
    """A graph with fixed shapes as one session per job.

    costs_s, limit_s: see OptimizedGraph.parts. shared: stores equal weights once for all sessions of the CPU's
    provider, also those for other numbers of images. single_launch: if there are several jobs, also create one session
    of the whole DNN and store it in attribute `single_launch` of the first stage. choice: the execution provider. dnn:
    the DNN's name, for messages. Raises ProviderError, and what ONNX Runtime raises.
    """
    shared = shared or Shared()
    graph = OptimizedGraph(model, standard_operators=choice.provider is not CPU)
    ready = [SessionStage(part, shared, choice, dnn) for part in graph.parts(jobs, costs_s, limit_s)]
    if single_launch and len(ready) > 1:
        ready[0].single_launch = SessionStage(graph.whole(), shared, choice, dnn)
    return tuple(ready)


class SessionStage:
    """A stage as a session. single_launch: for a first stage, the whole DNN as one session.

    choice: the execution provider, which reads and writes host memory. dnn: the DNN's name, for messages.

    It takes and returns NumPy arrays, or PyTorch's tensors. cost_s: estimated or measured seconds. weights: values that
    the session reads in place and that must stay alive; equal ones are shared through `shared`. operators: operator
    types of its model. A returned value is new, an input or a constant.
    """

    #: No call writes to its inputs, so several DNNs may read the same tensors.
    preserves_inputs = True

    def __init__(self, part: Part, shared: Shared, choice: Choice = _ON_CPU, dnn: str = "") -> None:
        self.choice = choice
        self.single_launch: SessionStage | None = None
        self.weights: list[Any] = []
        self.cost_s = part.cost_s
        self._input_names, self._output_names = part.takes, part.gives
        self._constants = {name: onnx.numpy_helper.to_array(tensor).copy() for name, tensor in part.constants.items()}
        self._session: Any = None
        self._session_inputs: frozenset[str] = frozenset()
        self._session_outputs: list[str] = []
        self.operators: frozenset[str] = frozenset()
        if part.model is not None:
            self.operators = frozenset(node.op_type for node in part.model.graph.node)
            self._session_inputs = frozenset(value.name for value in part.model.graph.input)
            self._session_outputs = [value.name for value in part.model.graph.output]
            if choice.provider is CPU:
                self.weights, self._session = _session(part.model, shared)
            else:
                self._session = provider_session(part.model, choice, HOST, dnn=dnn)

    def __call__(self, carried: Sequence[Any]) -> tuple[Any, ...]:
        as_tensors = not isinstance(carried[0], np.ndarray)
        values = {**self._constants, **dict(zip(self._input_names, map(np.ascontiguousarray, carried), strict=True))}
        if self._session is not None:
            fed = {name: value for name, value in values.items() if name in self._session_inputs}
            values.update(zip(self._session_outputs, self._session.run(self._session_outputs, fed), strict=True))
        results = tuple(values[name] for name in self._output_names)
        if as_tensors:
            import torch

            return tuple(map(torch.as_tensor, results))
        return results


def _session(model: onnx.ModelProto, shared: Shared) -> tuple[list[Any], Any]:
    """(weights that must stay alive, session) for a model that was optimized for this CPU."""
    options = session_options(optimize=False)
    # Idle threads that spin would take the core from another worker. Each session has its own pool for the same reason:
    # the Python API cannot stop the threads of ONNX Runtime's global pool from spinning. With two cores and two threads
    # per operation, the global pool took 0.93 times as long as one pool per session with one worker, 1.10 times with
    # two, and 1.5 times beside other load. A worker runs one session at a time, so at most workers * cpu_threads
    # threads compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    weights = []
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= _MIN_SHARED_BYTES:
            weights.append(_shared_weight(tensor, shared))
            options.add_initializer(tensor.name, weights[-1])
    with memory_file("job.onnx") as path:  # given bytes, the session would keep a copy of them
        onnx.save(model, path)
        # The session starts its threads here. They outlive the configuration, which may run at low priority.
        session = call_at_kept_priority(
            lambda: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        )
        return weights, session


def _register_arena() -> None:
    """Give the sessions of this process one arena for their activations, once.

    With an arena of its own, each session, even one that rarely runs, holds the activations of its last run forever:
    106 MB instead of 36 MB for three sessions of each built-in DNN, run by two threads.
    """
    global _arena_registered
    with _arena_lock:
        if not _arena_registered:
            memory = onnxruntime.OrtMemoryInfo(
                "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
            )
            onnxruntime.create_and_register_allocator(memory, None)
            _arena_registered = True


def _shared_weight(tensor: onnx.TensorProto, shared: Shared) -> Any:
    key = tensor.data_type, tuple(tensor.dims), hashlib.sha256(tensor.raw_data).digest()
    if key not in shared.weights:
        shared.weights[key] = onnxruntime.OrtValue.ortvalue_from_numpy(onnx.numpy_helper.to_array(tensor).copy())
    return shared.weights[key]
