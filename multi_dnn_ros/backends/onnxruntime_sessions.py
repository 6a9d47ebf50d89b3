"""The jobs of a DNN as sessions of ONNX Runtime, which share their weights."""

from __future__ import annotations

import hashlib
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, probe
from multi_dnn_ros.backends.onnx_export import ExportedChain, export_chain, memory_file
from multi_dnn_ros.backends.onnx_guards import add_guards
from multi_dnn_ros.backends.onnx_split import Part, optimize_parts, optimize_whole
from multi_dnn_ros.backends.quantization import check_quantized, quantized

#: Weights of at least so many bytes lie outside of the sessions, which may share them.
_LEAST_SHARED_BYTES = 1024
_WARM_UP_CALLS = 2
#: ONNX Runtime takes one allocator per device and process, and raises at a second one.
_arena_lock = threading.Lock()
_arena_registered = False


log = logging.getLogger(__name__)


def make_sessions(
    stages: Sequence[nn.Module], inputs: Tensors, tolerance: float, shared: Shared | None = None
) -> tuple[Stage, ...]:
    """Stages (eval mode, on the CPU) as a session each; of several, the first one's `chain` is all of them as one.

    tolerance: largest error of the results relative to their scale. shared: holds the weights that are equal, among the
    sessions for one number of images and for others. Raises ExportError, ValueError for results that differ, and what
    ONNX Runtime raises.
    """
    shared = shared or Shared()
    ready = _sessions(export_chain(stages, inputs), shared)
    image = probe(inputs)
    expected = _through(stages, image)
    for chain in _ways(ready):
        for _ in range(_WARM_UP_CALLS):
            check_agreement(_through(chain, image), expected, tolerance)
    return tuple(ready)


def make_int8_sessions(
    stages: Sequence[nn.Module],
    inputs: Tensors,
    images: tuple[Sequence[Tensors], Sequence[Tensors]],
    dnn: str,
    progress: Callable[[str], None],
    shared: Shared | None = None,
) -> tuple[Stage, ...]:
    """As `make_sessions`, quantized to int8 and compared with float32 on images that calibration did not see.

    Where the error is too large with every layer in int8, the layers before the outputs stay float32, with a line in
    the log. images: to calibrate on, and to compare on. dnn: the DNN's name, for the log. progress: gets a line before
    what takes seconds. ValueError where the error is too large even then.
    """
    shared = shared or Shared()
    exported = export_chain(stages, inputs)
    calibrate, compare = images
    expected = [_through(stages, image) for image in compare]

    def ready(*, heads: bool) -> tuple[Stage, ...]:
        made = _sessions(quantized(exported, calibrate, progress, heads=heads), shared)
        for chain in _ways(made):
            check_quantized([_through(chain, image) for image in compare], expected)
        return tuple(made)

    try:
        return ready(heads=True)
    except ValueError as error:
        log.info("%s in int8: the layers before the outputs stay float32, as with them %s", dnn, error)
    return ready(heads=False)


def _sessions(exported: ExportedChain, shared: Shared) -> list[SessionStage]:
    exported = add_guards(exported)
    parts = optimize_parts(exported)
    ready = []
    while parts:  # a model in memory is as large as its weights, so none stays longer than needed
        ready.append(SessionStage(parts.pop(0), shared))
    if len(ready) > 1:
        ready[0].chain = SessionStage(optimize_whole(exported), shared)
    return ready


def _ways(ready: Sequence[SessionStage]) -> list[Sequence[SessionStage]]:
    """Job by job and, of several, as one."""
    return [ready] if ready[0].chain is None else [ready, [ready[0].chain]]


def _through(stages: Sequence[Stage], carried: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            carried = stage(carried)
    return carried


class SessionStage:
    """A job as a session. chain: of a first job, the whole DNN as one session.

    weights: what the session reads where it lies; those of `shared` where they are equal. operators: of its model.
    What the stage returns lies in memory of its own, that of an input or that of a constant. Where a guard holds NaN,
    all results that can be are NaN, as PyTorch's would be in places; FloatingPointError where none can be.
    """

    def __init__(self, part: Part, shared: Shared) -> None:
        self.chain: SessionStage | None = None
        self.weights: list[Any] = []
        self._takes, self._gives, self._guards = part.takes, part.gives, part.guards
        self._constants = {name: _copied(tensor) for name, tensor in part.constants.items()}
        self._session: Any = None
        self._reads: frozenset[str] = frozenset()
        self._makes: list[str] = []
        self.operators: frozenset[str] = frozenset()
        if part.model is not None:
            self.operators = frozenset(node.op_type for node in part.model.graph.node)
            self._reads = frozenset(value.name for value in part.model.graph.input)
            self._makes = [value.name for value in part.model.graph.output]
            self.weights, self._session = _session(part.model, shared)

    def __call__(self, carried: Tensors) -> Tensors:
        values = {**self._constants, **dict(zip(self._takes, carried, strict=True))}
        if self._session is not None:
            fed = {name: tensor.contiguous().numpy() for name, tensor in values.items() if name in self._reads}
            made = self._session.run(self._makes, fed)
            results = dict(zip(self._makes, made, strict=True))
            if any(np.isnan(results[name]).any() for name in self._guards):
                _spoil([array for name, array in results.items() if name in self._gives])
            values.update((name, torch.from_numpy(array)) for name, array in results.items())
        return tuple(values[name] for name in self._gives)


def _spoil(arrays: Sequence[Any]) -> None:
    """Make NaN of what a job computed from NaN, in place."""
    floating = [array for array in arrays if np.issubdtype(array.dtype, np.floating)]
    if not floating:
        raise FloatingPointError("NaN inside the DNN")
    for array in floating:
        array.fill(np.nan)


def _session(model: onnx.ModelProto, shared: Shared) -> tuple[list[Any], Any]:
    """(weights that must live as long as the session, the session) of an optimized model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it is optimized already
    # Idle threads that spin would take the core from another worker. That is also why each session has a pool of its
    # own: the Python API cannot stop the threads of ONNX Runtime's global pool from spinning. On two cores with two
    # threads per operation, the global pool took 0.93 of the time with one worker, 1.10 with two, and 1.5 beside other
    # load. A worker runs one session at a time, so at most workers * cpu_threads threads compute.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    _register_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    weights = []
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= _LEAST_SHARED_BYTES:
            weights.append(_shared_weight(tensor, shared))
            options.add_initializer(tensor.name, weights[-1])
    with memory_file("job.onnx") as path:  # of a model in bytes the session would keep the bytes
        onnx.save(model, path)
        return weights, onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _register_arena() -> None:
    """Give the sessions of this process one arena for their activations, once.

    With arenas of their own, each holds the activations of its last run forever, also those of a session that rarely
    runs: 106 MB instead of 36 MB for three sessions of each built-in DNN, run by two threads.
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
        shared.weights[key] = onnxruntime.OrtValue.ortvalue_from_numpy(_copied(tensor).numpy())
    return shared.weights[key]


def _copied(tensor: onnx.TensorProto) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only, as the copy is not
        return torch.from_numpy(onnx.numpy_helper.to_array(tensor)).clone()
