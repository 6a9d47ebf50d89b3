"""The jobs of a DNN as one ONNX model whose outputs include every tensor that one job leaves for a later one."""

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
from multi_dnn_ros.common.error_text import summarize_error

#: HardSwish (14), LayerNormalization (17); no newer operator makes a network here faster on ONNX Runtime.
_OPSET = 17
#: The exporter keeps what it is doing in variables of its module.
_one_at_a_time = threading.Lock()


class ExportError(ValueError):
    """The jobs have no ONNX model; the message names the operation or the exporter's reason."""


@dataclass(frozen=True)
class ExportedChain:
    """model: its inputs are those of the first job. carried: per job the names of the values that it hands over, in
    order; those of the last job are the DNN's outputs. A job may hand over an input of the model. guards: further
    outputs of the model, see onnx_guards.
    """

    model: onnx.ModelProto
    carried: tuple[tuple[str, ...], ...]
    guards: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs, in order."""
        return tuple(value.name for value in self.model.graph.input)


def export_chain(stages: Sequence[nn.Module], inputs: Tensors) -> ExportedChain:
    """Export the stages (eval mode, on the CPU) for inputs of these shapes and types.

    PyTorch's TorchScript-based exporter does it: it takes a tenth of a second for a small DNN, and a restarted engine
    process exports again. What it refuses is left to the exporter based on torch.export where its package `onnxscript`
    is installed (seconds per DNN, but more operations). Raises ExportError.
    """
    _refuse_states(stages)
    chain = _Chain(stages).eval()
    with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode cannot be traced
        example = tuple(tensor.clone() for tensor in inputs)
        chain(*example)
    input_names = [f"input_{index}" for index in range(len(inputs))]
    output_names = [f"carried_{index}" for index in range(chain.results)]
    model = _exported(chain, example, input_names, output_names)
    if [value.name for value in model.graph.input] != input_names or len(model.graph.output) != chain.results:
        raise ExportError("the exported model has other inputs or outputs than the DNN")
    # A result that is a constant has the constant's name.
    own = dict(zip(output_names, (value.name for value in model.graph.output), strict=True))
    return ExportedChain(model, tuple(tuple(own.get(name, name) for name in names) for names in chain.carried))


class _Chain(nn.Module):
    """Stages one behind the other; returns each tensor once that a stage hands over and the inputs are not."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.carried: tuple[tuple[str, ...], ...] = ()
        self.results = 0

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        # By identity: a stage hands over the very tensor that it was given where it only passes it on. All are kept
        # in `known`, so that no identity is used twice.
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


def _refuse_states(stages: Sequence[nn.Module]) -> None:
    """An ONNX model computes the same for every frame: what a network writes down for the next one would be lost."""
    for node in (node for stage in stages for node in _nodes(stage)):
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            raise ExportError(f"operation {node.target} ({node.name}) writes into a tensor that is kept between frames")


def _nodes(stage: nn.Module) -> Iterator[fx.Node]:
    for part in stage.modules():
        if isinstance(part, fx.GraphModule):
            yield from part.graph.nodes


def _exported(
    chain: nn.Module, example: Tensors, input_names: Sequence[str], output_names: Sequence[str]
) -> onnx.ModelProto:
    exporters: list[Callable[..., onnx.ModelProto]] = [_by_torchscript]
    if importlib.util.find_spec("onnxscript") is not None:
        exporters.append(_by_torch_export)
    refusals = []
    with _one_at_a_time, _quiet(), torch.inference_mode(False), torch.no_grad():
        for export in exporters:
            try:
                return export(chain, example, list(input_names), list(output_names))
            except Exception as error:  # whatever an exporter raises, the next one may take it
                refusals.append(summarize_error(error))
    raise ExportError("; ".join(refusals))


def _by_torchscript(
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


def _by_torch_export(
    chain: nn.Module, example: Tensors, input_names: list[str], output_names: list[str]
) -> onnx.ModelProto:
    program = torch.onnx.export(
        chain, example, dynamo=True, input_names=input_names, output_names=output_names, verbose=False
    )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return model


def _register_views() -> None:
    """Traced graphs have a view that the TorchScript-based exporter does not know by this name."""
    from torch.onnx import symbolic_helper

    def unsafe_view(graph, image, shape):  # type: ignore[no-untyped-def]
        return symbolic_helper._reshape_helper(graph, image, shape)

    torch.onnx.register_custom_op_symbolic("aten::_unsafe_view", unsafe_view, _OPSET)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without deprecations and progress; and a refused graph, thousands of lines, is not printed to standard output."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    prints = getattr(torch._C, "_jit_onnx_log", None)
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        if prints is not None:
            torch._C._jit_onnx_log = lambda *texts: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if prints is not None:
            torch._C._jit_onnx_log = prints
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def memory_file(name: str) -> Iterator[str]:
    """Path of a file that is gone afterwards, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create(name)
        try:
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
    else:
        with tempfile.TemporaryDirectory(prefix="multi_dnn_ros_onnx_") as folder:
            yield os.path.join(folder, name)
