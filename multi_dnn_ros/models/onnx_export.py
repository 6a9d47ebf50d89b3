"""Exports a PyTorch module to ONNX."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import onnx
import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import ExportError
from multi_dnn_ros.models.onnx_graph import memory_file, quiet_session
from multi_dnn_ros.models.onnx_network import first_difference
from multi_dnn_ros.models.trace import quiet

#: Has HardSwish (14) and LayerNormalization (17); no newer operator made a tested network faster on ONNX Runtime.
_OPSET = 17
#: Largest difference of an output from PyTorch's, relative to the output's largest value.
_TOLERANCE = 1e-3
#: The exporter keeps state in module variables.
_export_lock = threading.Lock()

Tensors = tuple[torch.Tensor, ...]


def export(module: nn.Module, example: Tensors, *, carried: bool = False, compare: bool = False) -> onnx.ModelProto:
    """A module in eval mode on the CPU as an ONNX graph for inputs of these shapes and types, which returns its
    tensors in the order in which tuples and dicts hold them.

    Uses PyTorch's TorchScript-based exporter, which takes a tenth of a second for a small DNN, and needs no further
    package. carried: the module is a stage, which takes its tensors as one tuple. compare: run both on noise. Raises
    ExportError, also if the outputs for noise differ.
    """
    flat = _Flat(module, carried)
    with torch.inference_mode(False), torch.no_grad():  # inference tensors cannot be traced
        example = tuple(tensor.clone() for tensor in example)
        outputs = len(flat(*example))
    input_names = [f"input_{index}" for index in range(len(example))]
    model = _export(flat, example, input_names, [f"output_{index}" for index in range(outputs)])
    if [value.name for value in model.graph.input] != input_names or len(model.graph.output) != outputs:
        raise ExportError("the exported graph has other inputs or outputs than the network")
    if compare:
        image = torch.rand(example[0].shape, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            flat(image)
            expected = [output.numpy() for output in flat(image)]  # the state of a module that keeps one differs now
        found = quiet_session(model).run(None, {input_names[0]: image.numpy()})
        if difference := first_difference(found, expected, _TOLERANCE):
            raise ExportError(f"as ONNX its {difference} from PyTorch's")
    return model


class _Flat(nn.Module):
    """A network that takes its inputs one by one and returns a flat tuple of its output tensors."""

    def __init__(self, network: nn.Module, carried: bool) -> None:
        super().__init__()
        self.network = network
        self.carried = carried
        self.training = False  # not by eval(), which exported programs refuse

    def forward(self, *inputs: torch.Tensor) -> Tensors:
        outputs = pytree.tree_leaves(self.network(inputs) if self.carried else self.network(*inputs))
        return tuple(output for output in outputs if isinstance(output, torch.Tensor))


def _export(
    chain: nn.Module, example: Tensors, input_names: Sequence[str], output_names: Sequence[str]
) -> onnx.ModelProto:
    fast = torch.backends.mha.get_fastpath_enabled()
    with _export_lock, _quiet(), torch.inference_mode(False), torch.no_grad(), memory_file("exported.onnx") as path:
        _register_operations()
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # a transformer's layer as one operation
            torch.onnx.export(
                chain,
                example,
                path,
                dynamo=False,
                opset_version=_OPSET,
                training=torch.onnx.TrainingMode.PRESERVE,  # exported programs refuse train()
                input_names=list(input_names),
                output_names=list(output_names),
            )
            return onnx.load(path)
        except Exception as error:  # the exporter raises whatever a network raises
            raise ExportError(summarize_error(error)) from None
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def _register_operations() -> None:
    """Register operations that traced graphs contain and the TorchScript-based exporter does not know: views, and batch
    norms that follow no convolution.
    """
    from torch.onnx import symbolic_helper, symbolic_opset9

    def unsafe_view(graph, image, shape):  # type: ignore[no-untyped-def]
        return symbolic_helper._reshape_helper(graph, image, shape)

    def batch_norm(graph, image, weight, bias, mean, variance, momentum, eps):  # type: ignore[no-untyped-def]
        result = symbolic_opset9.batch_norm(graph, image, weight, bias, mean, variance, 0, momentum, eps, 0)
        unused = graph.op("Constant", value_t=torch.zeros(0))
        return result, unused, unused

    for name, symbolic in (("_unsafe_view", unsafe_view), ("_native_batch_norm_legit_no_training", batch_norm)):
        torch.onnx.register_custom_op_symbolic(f"aten::{name}", symbolic, _OPSET)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress deprecation warnings, progress, and the dump of a rejected graph (thousands of lines on stdout)."""
    dump = torch._C._jit_onnx_log
    try:
        torch._C._jit_onnx_log = lambda *texts: None
        with quiet("torch.onnx"):
            yield
    finally:
        torch._C._jit_onnx_log = dump
