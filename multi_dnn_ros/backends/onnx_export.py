"""Exports the stages of a DNN as one ONNX model whose outputs include every tensor carried between stages."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import fx, nn

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.common.errors import summarize_error

#: Has HardSwish (14) and LayerNormalization (17); no newer operator made a tested network faster on ONNX Runtime.
_OPSET = 17
#: The exporter keeps state in module variables.
_export_lock = threading.Lock()


class ExportError(ValueError):
    """The stages cannot be exported to ONNX; the message names the operation or the exporter's reason."""


@dataclass(frozen=True)
class ExportedChain:
    """The stages of a DNN as one model.

    model: its inputs are those of the first stage. carried: for each stage, the names of the values that it returns, in
    order; those of the last stage are the DNN's outputs. A stage may return an input of the model. guards: names of
    further outputs of the model, see onnx_guards.
    """

    model: onnx.ModelProto
    carried: tuple[tuple[str, ...], ...]
    guards: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return tuple(value.name for value in self.model.graph.input)


def export_chain(stages: Sequence[nn.Module], inputs: Tensors) -> ExportedChain:
    """Export the stages (eval mode, on the CPU) for inputs of these shapes and dtypes.

    Uses PyTorch's TorchScript-based exporter, because a restarted engine process exports again, and this exporter takes
    a tenth of a second for a small DNN. If it fails and the package `onnxscript` is installed, the exporter based on
    torch.export is tried, which takes seconds and supports more operations. Raises ExportError.
    """
    _refuse_state(stages)
    chain = _Chain(stages).eval()
    with torch.inference_mode(False), torch.no_grad():  # inference tensors cannot be traced
        example = tuple(tensor.clone() for tensor in inputs)
        chain(*example)
    input_names = [f"input_{index}" for index in range(len(inputs))]
    output_names = [f"carried_{index}" for index in range(chain.results)]
    model = _export(chain, example, input_names, output_names)
    if [value.name for value in model.graph.input] != input_names or len(model.graph.output) != chain.results:
        raise ExportError("the exported model has other inputs or outputs than the DNN")
    # A constant result has the constant's name.
    final_names = dict(zip(output_names, (value.name for value in model.graph.output), strict=True))
    return ExportedChain(model, tuple(tuple(final_names.get(name, name) for name in names) for names in chain.carried))


class _Chain(nn.Module):
    """The stages in sequence; returns each tensor that a stage returns once, except the inputs."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.carried: tuple[tuple[str, ...], ...] = ()
        self.results = 0

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        # By identity: a stage that passes a tensor on returns the same object. `known` keeps all of them alive, so that
        # no id is reused.
        known = {id(tensor): (f"input_{index}", tensor) for index, tensor in enumerate(inputs)}
        results: list[torch.Tensor] = []
        carried: list[tuple[str, ...]] = []
        tensors = inputs
        for stage in self.stages:
            tensors = stage(tensors)
            for tensor in tensors:
                if id(tensor) not in known:
                    known[id(tensor)] = (f"carried_{len(results)}", tensor)
                    results.append(tensor)
            carried.append(tuple(known[id(tensor)][0] for tensor in tensors))
        self.carried, self.results = tuple(carried), len(results)
        return tuple(results)


def _refuse_state(stages: Sequence[nn.Module]) -> None:
    """Raise ExportError for a DNN that keeps state between frames, which an ONNX model cannot."""
    for node in (node for stage in stages for node in _nodes(stage)):
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise ExportError(f"operation {node.target} ({node.name}) writes into a tensor that is kept between frames")


def _nodes(stage: nn.Module) -> Iterator[fx.Node]:
    for part in stage.modules():
        if isinstance(part, fx.GraphModule):
            yield from part.graph.nodes


def _export(
    chain: nn.Module, example: Tensors, input_names: Sequence[str], output_names: Sequence[str]
) -> onnx.ModelProto:
    exporters: list[Callable[..., onnx.ModelProto]] = [_export_by_torchscript]
    if importlib.util.find_spec("onnxscript") is not None:
        exporters.append(_export_by_torch_export)
    failures = []
    with _export_lock, _quiet(), torch.inference_mode(False), torch.no_grad():
        for export in exporters:
            try:
                return export(chain, example, list(input_names), list(output_names))
            except Exception as error:  # whatever an exporter raises, the next one may succeed
                failures.append(summarize_error(error))
    raise ExportError("; ".join(failures))


def _export_by_torchscript(
    chain: nn.Module, example: Tensors, input_names: list[str], output_names: list[str]
) -> onnx.ModelProto:
    _register_views()
    with memory_file("exported.onnx") as path:
        torch.onnx.export(
            chain,
            example,
            path,
            dynamo=False,
            opset_version=_OPSET,
            input_names=input_names,
            output_names=output_names,
        )
        return onnx.load(path)


def _export_by_torch_export(
    chain: nn.Module, example: Tensors, input_names: list[str], output_names: list[str]
) -> onnx.ModelProto:
    program = torch.onnx.export(
        chain, example, dynamo=True, input_names=input_names, output_names=output_names, verbose=False
    )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return model


def _register_views() -> None:
    """Register _unsafe_view, which traced graphs contain and the TorchScript-based exporter does not know."""
    from torch.onnx import symbolic_helper

    def unsafe_view(graph, image, shape):  # type: ignore[no-untyped-def]
        return symbolic_helper._reshape_helper(graph, image, shape)

    torch.onnx.register_custom_op_symbolic("aten::_unsafe_view", unsafe_view, _OPSET)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress deprecation warnings, progress, and the dump of a rejected graph (thousands of lines on stdout)."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    dump = getattr(torch._C, "_jit_onnx_log", None)
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        if dump is not None:
            torch._C._jit_onnx_log = lambda *texts: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if dump is not None:
            torch._C._jit_onnx_log = dump
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def memory_file(name: str) -> Iterator[str]:
    """Context manager: the path of a temporary file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
        try:
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryDirectory(prefix="multi_dnn_ros_onnx_") as folder:
            yield os.path.join(folder, name)
