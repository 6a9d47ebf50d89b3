"""Number formats of a DNN's layers: chosen per DNN, for every backend in the same way."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.errors import summarize_error

log = logging.getLogger(__name__)

_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_STRIDED = ("as_strided", "new_empty_strided", "empty_strided")


@dataclass(frozen=True)
class Precision:
    """A number format. dtype: that of weights and activations; results are always float32.

    tf32: whether float32 products on a GPU may be rounded to TF32 (10 bits of mantissa); None: the process's setting,
    by PyTorch's default yes for convolutions and no for matrix products.
    """

    name: str
    dtype: torch.dtype
    tf32: bool | None = None

    def tolerance(self, device: torch.device) -> float:
        """Largest error of a stage relative to the scale of its results.

        fp16 and TF32 have 10 bits of mantissa: 1e-2 allows for the rounding errors of many layers. bf16 has three bits
        less. For int8 this is the tolerance between a batch and its images alone; backends.quantization compares with
        float32.
        """
        if self.dtype is torch.bfloat16 or self.name == "int8":
            return 8e-2
        if self.dtype is torch.float32 and (self.tf32 is False or device.type == "cpu"):
            return 1e-4
        return 1e-2


PRECISIONS: Mapping[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("auto", torch.float32),
        Precision("fp32", torch.float32, tf32=False),
        Precision("tf32", torch.float32, tf32=True),
        Precision("fp16", torch.float16),
        Precision("bf16", torch.bfloat16),
        Precision("int8", torch.float32),  # between stages; ONNX Runtime computes in integers
    )
}


class InPrecision:
    """Wraps a backend: casts the stages to a precision before the backend prepares them.

    The first stage still takes float32 inputs, and the last one returns float32 results. On a GPU, fp16 and bf16 also
    imply channels_last, the layout that tensor cores need for convolutions. A stage that cannot be cast, or whose error
    exceeds the precision's tolerance, for example by overflow, stays float32 with a warning. dnn: its name, for the
    log.
    """

    def __init__(self, precision: Precision, backend: Backend, dnn: str = "") -> None:
        self.precision = precision
        self.backend = backend
        self._dnn = dnn or "the DNN"

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Cast the stages, compare each with float32, and prepare them with the wrapped backend."""
        if self.precision.dtype is torch.float32:
            with float32_products(self.precision.tf32 if device.type == "cuda" else None):
                return self.backend.prepare(stages, inputs, device, shared)
        inputs = noise_like(inputs)
        cast = self._cast(stages, inputs, device, shared)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # of the comparison, because captured graphs allocate from their own pools
        return self.backend.prepare(cast, inputs, device, shared)

    def _cast(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None
    ) -> list[nn.Module]:
        tolerance = self.precision.tolerance(device)
        cast: list[nn.Module] = []
        copies = (shared or Shared()).converted  # a weight shared by two stages stays shared
        carried = tuple(tensor.cpu() for tensor in inputs)
        with torch.no_grad():  # not inference_mode: a compiler could not trace its tensors afterwards
            for index, stage in enumerate(stages):
                expected = _float32_results(stage, carried, device)
                try:
                    candidate: nn.Module = self._cast_stage(stage, copies[self.precision.dtype], device)
                    results = candidate.to(device)(tuple(tensor.to(device) for tensor in carried))
                    as_expected = tuple(r.to(e.dtype) for r, e in zip(results, expected, strict=True))
                    check_agreement(as_expected, expected, tolerance)
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    log.warning(
                        "job %d of %s stays float32, because %s fails: %s",
                        index + 1, self._dnn, self.precision.name, summarize_error(error),
                    )  # fmt: skip
                    if shared is None:
                        candidate = _Cast(stage, torch.float32)
                    else:  # copy: the original weights stay on the CPU for the comparison of the next stages
                        candidate = cast_stage(stage, torch.float32, converted=copies[torch.float32])
                cast.append(candidate)
                carried = expected
        last = cast[-1]
        assert isinstance(last, _Cast)
        last.results = torch.float32
        return cast

    def _cast_stage(self, stage: nn.Module, converted: dict[int, torch.Tensor], device: torch.device) -> _Cast:
        channels_last = device.type == "cuda" and not _reads_strides(stage)
        return cast_stage(stage, self.precision.dtype, channels_last=channels_last, converted=converted)


def _float32_results(stage: nn.Module, carried: Tensors, device: torch.device) -> Tensors:
    """Float32 results of a stage whose weights are on the CPU and stay there.

    Computed on the device, where a large batch takes a second instead of a minute, or on the CPU if that fails, for
    example for lack of memory.
    """
    if device.type == "cuda":
        try:
            with float32_products(False):
                found: Tensors = _copy_on(device, stage)(tuple(tensor.to(device) for tensor in carried))
                return found
        except Exception as error:
            log.debug("a stage is compared with float32 on the CPU: %s", summarize_error(error))
        torch.cuda.empty_cache()
    results: Tensors = stage(tuple(tensor.cpu() for tensor in carried))
    return results


def _copy_on(device: torch.device, stage: nn.Module) -> nn.Module:
    """A copy of the stage on the device, without a second copy of its weights on the CPU."""
    memo: dict[int, object] = {id(buffer): buffer.to(device, copy=True) for buffer in stage.buffers()}
    for weight in stage.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach().to(device, copy=True), weight.requires_grad)
    copied: nn.Module = copy.deepcopy(stage, memo)
    return copied.to(device)


def cast_stage(
    stage: nn.Module,
    dtype: torch.dtype,
    *,
    channels_last: bool = False,
    converted: dict[int, torch.Tensor] | None = None,
) -> _Cast:
    """A copy of a float32 stage that computes in `dtype`; the stage itself is not changed.

    Weights are cast after batch norms were folded into them in float32. converted: previous casts, by id of the float32
    tensor, which must stay alive. channels_last: memory format of weights and images.
    """
    converted = {} if converted is None else converted
    memo: dict[int, object] = {}
    for tensor in itertools.chain(stage.parameters(), stage.buffers()):
        if id(tensor) not in converted:
            converted[id(tensor)] = _cast_tensor(tensor, dtype, channels_last)
        memo[id(tensor)] = converted[id(tensor)]
    copied = copy.deepcopy(stage, memo)  # deepcopy takes the cast tensors from the memo
    for part in copied.modules():
        if isinstance(part, fx.GraphModule):
            _cast_graph(part, dtype, reshape=channels_last)
    return _Cast(copied, dtype, channels_last=channels_last)


class _Cast(nn.Module):
    """Casts a stage's floating-point inputs to `dtype` and, if set, its floating-point outputs to `results`."""

    def __init__(self, stage: nn.Module, dtype: torch.dtype, *, channels_last: bool = False) -> None:
        super().__init__()
        self.stage = stage
        self.dtype = dtype
        self.channels_last = channels_last
        self.results: torch.dtype | None = None

    def forward(self, carried: Tensors) -> Tensors:
        outputs: Tensors = self.stage(tuple(self._cast(tensor) for tensor in carried))
        if self.results is None:
            return outputs
        return tuple(tensor.to(self.results) if tensor.is_floating_point() else tensor for tensor in outputs)

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        layout = torch.channels_last if self.channels_last and tensor.ndim == 4 else torch.preserve_format
        return tensor.to(self.dtype, memory_format=layout)


def _cast_tensor(tensor: torch.Tensor, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    layout = torch.channels_last if channels_last and tensor.ndim == 4 else torch.preserve_format
    cast = tensor.detach().to(dtype, memory_format=layout)
    return nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast


def _cast_graph(graph_module: fx.GraphModule, dtype: torch.dtype, *, reshape: bool) -> None:
    """Replace float32 by `dtype` in the arguments of all operations. reshape: see _reshape_views."""
    for node in graph_module.graph.nodes:
        node.args = fx.node.map_aggregate(node.args, lambda value: dtype if value is torch.float32 else value)
        node.kwargs = fx.node.map_aggregate(node.kwargs, lambda value: dtype if value is torch.float32 else value)
    if reshape:
        _reshape_views(graph_module)
    graph_module.recompile()


def _reshape_views(graph_module: fx.GraphModule) -> None:
    """Replace views by reshapes: a view may be impossible in another memory format than the traced one."""
    for node in graph_module.graph.nodes:
        if node.target in _VIEWS:
            node.target = torch.ops.aten.reshape.default


def _reads_strides(stage: nn.Module) -> bool:
    """Whether an operation of the stage depends on the strides of its input."""
    graphs = (part.graph for part in stage.modules() if isinstance(part, fx.GraphModule))
    return any(name in str(node.target) for graph in graphs for node in graph.nodes for name in _STRIDED)


@contextlib.contextmanager
def float32_products(tf32: bool | None) -> Iterator[None]:
    """Context manager: allow or forbid rounding float32 products to TF32 on GPUs; None: do not change the setting.

    The setting is global to the process and affects everything that runs on a GPU in the block.
    """
    if tf32 is None:
        yield
        return
    before = [(module, name, value) for module, name in _TF32_SETTINGS if (value := _setting(module, name)) is not None]
    try:
        # Setting these two changes PyTorch's older and newer settings alike; Inductor 2.11 still reads the older ones.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


#: PyTorch 2.9 has older and newer names; reading the older ones fails if the newer ones were set.
_TF32_SETTINGS = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "fp32_precision"),
    (getattr(torch.backends.cudnn, "conv", None), "fp32_precision"),
    (getattr(torch.backends.cudnn, "rnn", None), "fp32_precision"),
)


def _setting(module: object, name: str) -> object:
    try:
        return getattr(module, name)
    except (AttributeError, RuntimeError):
        return None
