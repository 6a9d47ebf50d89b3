"""The stages of a DNN as sessions of ONNX Runtime that share their weights."""

from __future__ import annotations

import hashlib
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.onnx_export import ExportedChain, export_chain, memory_file
from multi_dnn_ros.backends.onnx_guards import add_guards
from multi_dnn_ros.backends.onnx_providers import COMPILED, CPU, Choice, SessionRequest, compiled_folder, make_session
from multi_dnn_ros.backends.onnx_split import Part, optimize_parts, optimize_whole
from multi_dnn_ros.backends.quantization import check_quantized, quantize
from multi_dnn_ros.backends.thread_priority import call_at_kept_priority

#: Weights of at least this size are stored outside the sessions, which can then share them.
_MIN_SHARED_BYTES = 1024
_WARM_UP_CALLS = 2
#: ONNX Runtime accepts one allocator per device and process, and raises an error for a second one.
_arena_lock = threading.Lock()
_arena_registered = False
_ON_CPU = Choice(CPU)


log = logging.getLogger(__name__)


def make_sessions(
    stages: Sequence[nn.Module],
    inputs: Tensors,
    tolerance: float,
    shared: Shared | None = None,
    single_launch: bool = True,
    choice: Choice = _ON_CPU,
    dnn: str = "",
) -> tuple[Stage, ...]:
    """One session per stage (eval mode, on the CPU).

    tolerance: largest error of the results relative to their scale. shared: stores equal weights once for all sessions
    of the CPU's provider, also those for other numbers of images. single_launch: if there are several stages, also
    create one session of the whole DNN and store it in attribute `single_launch` of the first stage. choice: the
    execution provider. dnn: the DNN's name, for messages. Raises ExportError, ValueError for results that differ,
    ProviderError, and what ONNX Runtime raises.
    """
    shared = shared or Shared()
    ready = _sessions(export_chain(stages, inputs), shared, single_launch, choice, dnn)
    image = noise_like(inputs)
    expected = _run(stages, image)
    for chain in _sequences(ready):
        for _ in range(_WARM_UP_CALLS):
            check_agreement(_run(chain, image), expected, tolerance)
    return tuple(ready)


def make_int8_sessions(
    stages: Sequence[nn.Module],
    inputs: Tensors,
    images: tuple[Sequence[Tensors], Sequence[Tensors]],
    dnn: str,
    progress: Callable[[str], None],
    shared: Shared | None = None,
    single_launch: bool = True,
) -> tuple[Stage, ...]:
    """As `make_sessions`, quantized to int8 and compared with float32 on images that were not used for calibration.

    If the error with all layers in int8 is too large, the last layers before the outputs stay float32, with a line in
    the log. images: for calibration and for the comparison. dnn: the DNN's name, for the log. progress: called with a
    line before slow steps. ValueError if the error is too large even then.
    """
    shared = shared or Shared()
    exported = export_chain(stages, inputs)
    calibrate, compare = images
    expected = [_run(stages, image) for image in compare]

    def ready(*, heads: bool) -> tuple[Stage, ...]:
        made = _sessions(quantize(exported, calibrate, progress, heads=heads), shared, single_launch)
        for chain in _sequences(made):
            check_quantized([_run(chain, image) for image in compare], expected)
        return tuple(made)

    try:
        return ready(heads=True)
    except ValueError as error:
        log.info("%s: the last layers before the outputs stay float32; with all layers in int8, %s", dnn, error)
    return ready(heads=False)


def _sessions(
    exported: ExportedChain, shared: Shared, single_launch: bool, choice: Choice = _ON_CPU, dnn: str = ""
) -> list[SessionStage]:
    exported = add_guards(exported)
    standard_operators = choice.provider.standard_operators

    def stage(part: Part) -> SessionStage:
        return SessionStage(part, shared, choice, dnn)

    parts = optimize_parts(exported, standard_operators=standard_operators)
    ready = []
    while parts:  # release each model as soon as possible: it contains its weights
        ready.append(stage(parts.pop(0)))
    if single_launch and len(ready) > 1:
        ready[0].single_launch = stage(optimize_whole(exported, standard_operators=standard_operators))
    return ready


def _sequences(ready: Sequence[SessionStage]) -> list[Sequence[SessionStage]]:
    """The sequences to check: stage by stage and, if prepared, all in one."""
    return [ready] if ready[0].single_launch is None else [ready, [ready[0].single_launch]]


def _run(stages: Sequence[Stage], inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        return run_stages(stages, inputs)


class SessionStage:
    """A stage as a session. single_launch: for a first stage, the whole DNN as one session.

    choice: the execution provider, which reads and writes host memory. dnn: the DNN's name, for messages.

    weights: values that the session reads in place and that must stay alive; equal ones are shared through `shared`.
    operators: operator types of its model. A returned tensor is new, an input or a constant. If a guard is NaN, all
    floating-point results are filled with NaN, as some of PyTorch's would be; FloatingPointError if there are none.
    """

    #: No call writes to its inputs, so several DNNs may read the same tensors.
    preserves_inputs = True

    def __init__(self, part: Part, shared: Shared, choice: Choice = _ON_CPU, dnn: str = "") -> None:
        self.choice = choice
        self.single_launch: SessionStage | None = None
        self.weights: list[Any] = []
        self._input_names, self._output_names, self._guards = part.takes, part.gives, part.guards
        self._constants = {name: to_tensor(tensor) for name, tensor in part.constants.items()}
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
                self._session = provider_session(part.model, choice, torch.device("cpu"), dnn=dnn)

    def __call__(self, carried: Tensors) -> Tensors:
        values = {**self._constants, **dict(zip(self._input_names, carried, strict=True))}
        if self._session is not None:
            fed = {name: tensor.contiguous().numpy() for name, tensor in values.items() if name in self._session_inputs}
            made = self._session.run(self._session_outputs, fed)
            results = dict(zip(self._session_outputs, made, strict=True))
            if any(np.isnan(results[name]).any() for name in self._guards):
                _fill_with_nan([array for name, array in results.items() if name in self._output_names])
            values.update((name, torch.from_numpy(array)) for name, array in results.items())
        return tuple(values[name] for name in self._output_names)


def _fill_with_nan(arrays: Sequence[Any]) -> None:
    """Mark results that were computed from NaN, in place. FloatingPointError if none of them can be NaN."""
    floating = [array for array in arrays if np.issubdtype(array.dtype, np.floating)]
    if not floating:
        raise FloatingPointError("NaN inside the DNN")
    for array in floating:
        array.fill(np.nan)


def provider_session(
    model: onnx.ModelProto, choice: Choice, device: torch.device, *, dnn: str, precision: str = "auto", stream: int = 0
) -> Any:
    """A session for a model in standard operators; what the provider compiles is cached.

    device, precision, stream: see SessionRequest. Raises ProviderError and what ONNX Runtime raises.
    """
    request = SessionRequest(device, precision, torch.get_num_threads(), stream, choice.target)
    options = _session_options(optimize=choice.provider.optimize)
    folder = compiled_folder(model, choice, request, dnn)
    if folder is None:
        return make_session(model, options, choice, request, dnn)
    # Providers do not write their files atomically: of two identical GPUs that are configured at the same time, one
    # compiles, and the other waits and reads the result.
    with COMPILED.locked(folder.name):
        return make_session(model, options, choice, replace(request, cache=folder), dnn)


def _session_options(*, optimize: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _session(model: onnx.ModelProto, shared: Shared) -> tuple[list[Any], Any]:
    """(weights that must stay alive, session) for a model that was optimized for this CPU."""
    options = _session_options(optimize=False)
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
        shared.weights[key] = onnxruntime.OrtValue.ortvalue_from_numpy(to_tensor(tensor).numpy())
    return shared.weights[key]


def to_tensor(tensor: onnx.TensorProto) -> torch.Tensor:
    """A constant of a model as a tensor with its own memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only array; the copy is writable
        return torch.from_numpy(onnx.numpy_helper.to_array(tensor)).clone()
