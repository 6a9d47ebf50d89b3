"""Fuses a convolution with its bias, a residual addition and the ReLU that follows into one kernel.

PyTorch calls cuDNN for the convolution alone. Its result is then read and written again for the bias, the addition and
the ReLU, which are limited by memory bandwidth.
"""

from __future__ import annotations

import copy
import itertools
import logging
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU, unfused
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.graph.convolution_nodes import (
    CONVOLUTIONS,
    arguments_of,
    convolution_arguments,
    is_transposed,
    traced,
)

log = logging.getLogger(__name__)

aten = torch.ops.aten
_RELUS = (aten.relu.default, aten.relu_.default)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class FusedActivations:
    """Wraps a backend: fuses convolutions with their ReLUs in the stages that it gets, where that is possible.

    On a GPU a fusion that is slower than the separate operations is not used. A stage that fails when fused, or whose
    results differ, is passed on unfused, with a warning. tolerance: largest error of a stage relative to the scale of
    its results. dnn: its name, for the log.
    """

    def __init__(self, backend: Backend, tolerance: float = 1e-4, dnn: str = "") -> None:
        self.backend = backend
        self._tolerance = tolerance
        self._dnn = dnn or "the DNN"

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Fuse copies of the stages, try each on the device, and prepare them with the wrapped backend."""
        return self.backend.prepare(self._fuse_stages(stages, inputs, device), inputs, device, shared)

    def _fuse_stages(self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device) -> list[nn.Module]:
        if not any(True for stage in stages for _ in _patterns(stage)):
            return list(stages)
        ready: list[nn.Module] = []
        with torch.no_grad():  # not inference_mode: a compiler could not trace its tensors afterwards
            carried = tuple(tensor.to(device) for tensor in noise_like(inputs))
            for index, stage in enumerate(stages):
                # Move first: moving replaces buffers, and the fused copy should share those of the stage.
                stage.to(device)
                expected = stage(tuple(tensor.clone() for tensor in carried))  # the stage may write into its inputs
                ready.append(self._fuse_stage(index, stage, carried, expected))
                carried = expected
        return ready

    def _fuse_stage(self, index: int, stage: nn.Module, carried: Tensors, expected: Tensors) -> nn.Module:
        try:
            fused = fuse(stage)
            if fused is not stage and carried and carried[0].is_cuda:
                log.info("job %d of %s: timing fused and separate convolution kernels", index + 1, self._dnn)
                with torch.cuda.device(carried[0].device), _FusionTiming() as timing:
                    fused(tuple(tensor.clone() for tensor in carried))
                fused = fuse(stage, without=timing.slower)
            if fused is not stage:
                check_agreement(fused(tuple(tensor.clone() for tensor in carried)), expected, self._tolerance)
        except Exception as error:  # whatever the fused operation raises, the separate ones still work
            if is_out_of_memory(error):
                raise
            log.warning(
                "job %d of %s: conv+ReLU fusion disabled: %s",
                index + 1, self._dnn, summarize_error(error),
            )  # fmt: skip
            return stage
        return fused


def fuse(stage: nn.Module, without: Collection[int] = ()) -> nn.Module:
    """A copy of the stage that shares its tensors and has fused operations; the stage itself if there are none to fuse.

    without: numbers of the possible fusions to leave out, counted from 0 in execution order.
    """
    if all(number in without for number, _ in enumerate(_patterns(stage))):
        return stage
    memo: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    fused = copy.deepcopy(stage, memo)
    for number, pattern in enumerate(_patterns(fused)):
        if number not in without:
            pattern.fuse()
    for graph_module in _graph_modules(fused):
        graph_module.graph.lint()
        graph_module.recompile()
    return fused


def fused_operations(graph_module: fx.GraphModule) -> frozenset[str]:
    """Names of a graph's additions and ReLUs that are fused into the preceding convolution and take no time of their
    own.

    Assumes a GPU on which cuDNN has a fused kernel: grouped convolutions are not fused.
    """
    return frozenset(
        node.name
        for pattern in _patterns(graph_module)
        if convolution_arguments(pattern.convolution)[-1] == 1
        for node in (pattern.sum, pattern.relu)
        if node is not None
    )


class _FusionTiming(TorchDispatchMode):
    """Context manager: times each fused operation that runs on a GPU inside it against the separate operations.

    For some, such as grouped convolutions, cuDNN's fused kernel takes ten times as long. slower: numbers of the fused
    operations that are slower or rejected, in execution order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.slower: list[int] = []
        self._run = 0
        self._known: dict[tuple[Any, ...], bool] = {}

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not CONVOLUTION_RELU:
            return function(*args, **(kwargs or {}))
        key = tuple(
            (each.shape, each.stride(), each.dtype) if isinstance(each, torch.Tensor) else str(each) for each in args
        )
        if key not in self._known:
            self._known[key] = _is_slower(args)
        if self._known[key]:
            self.slower.append(self._run)
        self._run += 1
        return unfused(*args)


def _is_slower(args: tuple[Any, ...]) -> bool:
    """Whether the fused operation takes longer, is rejected, or cannot be compiled."""
    separate_ms = gpu_ms(lambda: unfused(*args))
    try:
        return gpu_ms(lambda: CONVOLUTION_RELU(*args)) > separate_ms
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if not isinstance(error, RuntimeError):  # RuntimeError: cuDNN has no such kernel
            log.warning("a fused convolution kernel fails and is not used: %s", summarize_error(error))
        return True


def _graph_modules(stage: nn.Module) -> Iterator[fx.GraphModule]:
    return (part for part in stage.modules() if isinstance(part, fx.GraphModule))


def _patterns(stage: nn.Module) -> Iterator[_Pattern]:
    """Possible fusions in execution order. The caller may fuse each one before it takes the next."""
    for graph_module in _graph_modules(stage):
        for node in list(graph_module.graph.nodes):
            pattern = _pattern(node)
            if pattern is not None:
                yield pattern


@dataclass
class _Pattern:
    """relu(convolution), or relu(convolution + z). sum: the addition."""

    relu: fx.Node
    convolution: fx.Node
    sum: fx.Node | None = None
    z: fx.Node | None = None

    def fuse(self) -> None:
        graph = self.relu.graph
        image, weight, bias, *geometry = convolution_arguments(self.convolution)
        # As early as its inputs allow, so that a time mark after the convolution includes the fused operation.
        with graph.inserting_after(self.convolution if self.z is None else max(self.convolution, self.z)):
            fused = graph.call_function(CONVOLUTION_RELU, (image, weight, bias, self.z, *geometry))
        fused.meta = dict(self.relu.meta)
        self.relu.replace_all_uses_with(fused)
        for node in (self.relu, self.sum, self.convolution):
            if node is not None:
                graph.erase_node(node)


def _pattern(relu: fx.Node) -> _Pattern | None:
    """The fusion that ends with this ReLU; None if there is none."""
    source = relu.args[0] if relu.target in _RELUS and relu.args else None
    if not isinstance(source, fx.Node) or len(source.users) > 1:
        return None
    if source.target in (aten.add.Tensor, aten.add_.Tensor):
        found = _sum_pattern(relu, source)
    else:
        found = _Pattern(relu, source) if _is_fusible(source) else None
    return found if found is not None and _can_be_moved(found) else None


def _sum_pattern(relu: fx.Node, total: fx.Node) -> _Pattern | None:
    left, right = arguments_of(total, "self", "other")
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or left is right:
        return None
    (scale,) = arguments_of(total, "alpha")
    # An in-place addition is visible to other readers of the tensor; a fusible convolution has no other reader.
    choices = [(left, right)] if total.target is aten.add_.Tensor else [(left, right), (right, left)]
    choices = [(node, z) for node, z in choices if _is_fusible(node) and _are_alike(node, z)]
    if scale != 1 or not choices:
        return None
    # Of two convolutions, take the later one, because fewer operations lie between it and the addition.
    convolution, z = max(choices)
    return _Pattern(relu, convolution, total, z)


def _is_fusible(node: fx.Node) -> bool:
    """Whether the node is a 2-D convolution whose result only one node reads."""
    tensor = traced(node)
    if node.target not in CONVOLUTIONS or len(node.users) != 1 or tensor is None or tensor.ndim != 4:
        return False
    return tensor.dtype in _DTYPES and not is_transposed(node)


def _are_alike(left: fx.Node, right: fx.Node) -> bool:
    first, second = traced(left), traced(right)
    return first is not None and second is not None and (first.shape, first.dtype) == (second.shape, second.dtype)


def _can_be_moved(pattern: _Pattern) -> bool:
    """Whether the operations between the convolution and the ReLU only read, so that moving the fusion is safe."""
    node = pattern.convolution.next
    while node is not pattern.relu:
        if node is not pattern.sum and not _only_reads(node):
            return False
        node = node.next
    return True


def _only_reads(node: fx.Node) -> bool:
    if not node.all_input_nodes and not node.users:  # a time mark: no tensor in or out
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    return node.op == "get_attr" or node.target is operator.getitem
