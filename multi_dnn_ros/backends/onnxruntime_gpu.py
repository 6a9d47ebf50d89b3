"""Stages as sessions of ONNX Runtime on a GPU: images and results stay in its memory, on the DNN's own stream.

Not yet run on a GPU (docs/devices.md). The tests run the same stage with a session of the CPU's provider.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.capture import capture_stream
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.onnx_providers import Choice, first_working, provider_session
from multi_dnn_ros.backends.registry import BackendRequest
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, Part
from multi_dnn_ros.models.onnx_export import export
from multi_dnn_ros.models.onnx_graph import ValueType

log = logging.getLogger(__name__)

_WARM_UP_CALLS = 2


class OnnxRuntimeOnGpu:
    """Runs each stage as a session; the execution providers are tried in turn. To be captured by CudaGraph.

    A DNN that no provider runs stays with PyTorch, with a warning. The stages of the request are cast before. With its
    `single_launch` that of the first stage is the whole DNN as one session.
    """

    def __init__(self, request: BackendRequest) -> None:
        self._request = request
        self._dnn = request.dnn or "the DNN"

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move to `device`, export, create the sessions, compare with eager results and warm up.

        Sessions compute on the stream of `shared`. Raises ProviderError if the providers are required and none works.
        """
        request, shared = self._request, shared or Shared()
        if shared.stream is None and device.type == "cuda":
            shared.stream = capture_stream(device)
        eager = Eager().prepare(stages, inputs, device)
        number = 0 if shared.stream is None else shared.stream.cuda_stream

        def make(choice: Choice) -> tuple[Stage, ...]:
            def session(model: Any) -> Any:
                return provider_session(
                    model, choice, device, dnn=self._dnn, precision=request.precision, stream=number
                )

            return bound_stages(
                eager, inputs, device, session, request.tolerance, stream=shared.stream,
                single_launch=request.single_launch,
            )  # fmt: skip

        ready = first_working(request.providers, device, request.precision, self._dnn, make, required=request.required)
        if ready is None:
            log.warning(
                "%s runs as PyTorch on %s, because no execution provider of ONNX Runtime runs it", self._dnn, device
            )
        return eager if ready is None else ready


def bound_stages(
    stages: Sequence[Any],
    inputs: Tensors,
    device: torch.device,
    make_session: Any,
    tolerance: float,
    *,
    stream: Any = None,
    single_launch: bool = True,
) -> tuple[Stage, ...]:
    """The stages as sessions that are bound to the memory of `device`, compared with the stages themselves.

    stages: modules on `device`. make_session: creates a session from a model in standard operators. stream: the stream
    of the sessions; None on a CPU. Raises ExportError, ValueError for results that differ, and what ONNX Runtime
    raises.
    """

    def bound(stage: nn.Module, carried: Tensors) -> BoundStage:
        graph = OptimizedGraph(export(stage, carried, carried=True), standard_operators=True)
        return BoundStage(graph.whole(), device, make_session, stream)

    example = tuple(tensor.to(device) for tensor in inputs)
    ready = []
    carried = example
    with torch.inference_mode():
        for stage in stages:
            ready.append(bound(stage, carried))
            carried = stage(carried)
    if single_launch and len(ready) > 1:
        ready[0].single_launch = bound(nn.Sequential(*stages), example)
    with torch.inference_mode():
        image = noise_like(example)
        expected = run_stages(stages, image)
        for chain in [ready] if ready[0].single_launch is None else [ready, [ready[0].single_launch]]:
            for _ in range(_WARM_UP_CALLS):
                check_agreement(run_stages(chain, image), expected, tolerance)
    return tuple(ready)


class BoundStage:
    """A stage as a session that reads and writes tensors where they are. See SessionStage for `part`.

    It runs on `stream`. Before, `stream` waits for the calling thread's current stream; afterwards, the current stream
    waits for `stream`. A capture on `stream` needs no waits. single_launch: for a first stage, the whole DNN as one.
    """

    def __init__(self, part: Part, device: torch.device, make_session: Any, stream: Any = None) -> None:
        self.single_launch: BoundStage | None = None
        self._device, self._stream = device, stream
        self._input_names, self._output_names = part.takes, part.gives
        self._constants = {
            name: torch.from_numpy(numpy_helper.to_array(tensor).copy()).to(device)
            for name, tensor in part.constants.items()
        }
        self._session: Any = None
        self._session_inputs: frozenset[str] = frozenset()
        self._session_outputs: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if part.model is not None:
            self._session = make_session(part.model)
            self._session_inputs = frozenset(value.name for value in self._session.get_inputs())
            self._session_outputs = {value.name: _form(value) for value in self._session.get_outputs()}
            self._options = onnxruntime.RunOptions()
            if stream is not None:  # the stream orders what follows; waiting for it would break a capture
                self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self, carried: Tensors) -> Tensors:
        values = {**self._constants, **dict(zip(self._input_names, carried, strict=True))}
        if self._session is not None:
            read = {name: tensor.contiguous() for name, tensor in values.items() if name in self._session_inputs}
            made = {
                name: torch.empty(shape, dtype=dtype, device=self._device)
                for name, (shape, dtype) in self._session_outputs.items()
            }
            self._run(read, made)
            values.update(made)
        return tuple(values[name] for name in self._output_names)

    def _run(self, read: dict[str, torch.Tensor], made: dict[str, torch.Tensor]) -> None:
        binding = self._session.io_binding()
        for name, tensor in read.items():
            binding.bind_input(*self._binding(name, tensor))
        for name, tensor in made.items():
            binding.bind_output(*self._binding(name, tensor))
        current = None if self._stream is None else torch.cuda.current_stream(self._device)
        if current is not None and current != self._stream:
            self._stream.wait_stream(current)
        self._session.run_with_iobinding(binding, self._options)
        if current is not None and current != self._stream:
            current.wait_stream(self._stream)

    def _binding(self, name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Arguments of bind_input and bind_output."""
        element = np.dtype(str(tensor.dtype).removeprefix("torch."))
        return (
            name, self._device.type, self._device.index or 0, element.type, tuple(tensor.shape), tensor.data_ptr(),
        )  # fmt: skip


def _form(value: Any) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of an output of a session. ValueError unless the shape is fixed; TypeError if PyTorch lacks it."""
    known = ValueType(value.type, tuple(axis if isinstance(axis, int) else 0 for axis in value.shape))
    if known.shape is None:
        raise ValueError(f"result {value.name} is {value.type} {value.shape}, without a fixed shape")
    kind = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, known.element))
    return known.shape, torch.from_numpy(np.empty(0, kind)).dtype
