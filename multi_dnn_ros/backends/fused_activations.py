"""A convolution, its bias, a tensor that is added and the ReLU behind as one kernel.

PyTorch calls cuDNN for the convolution alone. What that wrote to memory is read and written again for the bias, for the
sum and for the ReLU, on a GPU that waits for its memory there.
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
from multi_dnn_ros.backends.convolution_nodes import (
    CONVOLUTIONS,
    arguments_of,
    convolution_arguments,
    is_transposed,
    traced,
)
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU, unfused
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.common.error_text import summarize_error

log = logging.getLogger(__name__)

aten = torch.ops.aten
_RELUS = (aten.relu.default, aten.relu_.default)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class FusedActivations:
    """Another backend, which gets stages whose convolutions and ReLUs are one operation each where that is possible.

    Whatever else stands behind a convolution stays as it is, and on a GPU also what is slower as one operation. A stage
    that fails on the device then, or computes something else than before, is handed on as it was, with a warning.
    tolerance: largest error relative to the scale of its results. dnn: its name, for the log.
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
        """Fuse, try each stage on the device, and have the other backend prepare them; the stages stay as they are."""
        return self.backend.prepare(self._tried(stages, inputs, device), inputs, device, shared)

    def _tried(self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device) -> list[nn.Module]:
        if not any(True for stage in stages for _ in _patterns(stage)):
            return list(stages)
        ready: list[nn.Module] = []
        with torch.no_grad():  # not inference mode, whose tensors could not be traced by a compiler afterwards
            carried = tuple(tensor.to(device) for tensor in noise_like(inputs))
            for index, stage in enumerate(stages):
                # Moved first, as the other backend would: buffers, which moving replaces, are then there only once.
                stage.to(device)
                expected = stage(tuple(tensor.clone() for tensor in carried))  # it may write into its inputs
                ready.append(self._one(index, stage, carried, expected))
                carried = expected
        return ready

    def _one(self, index: int, stage: nn.Module, carried: Tensors, expected: Tensors) -> nn.Module:
        try:
            own = fuse(stage)
            if own is not stage and carried and carried[0].is_cuda:
                log.info("job %d of %s: trying kernels for its convolutions", index, self._dnn)
                with torch.cuda.device(carried[0].device), _Race() as race:
                    own(tuple(tensor.clone() for tensor in carried))
                own = fuse(stage, but=race.lost)
            if own is not stage:
                check_agreement(own(tuple(tensor.clone() for tensor in carried)), expected, self._tolerance)
        except Exception as error:  # whatever cuDNN does not bear, its single operations do
            if is_out_of_memory(error):
                raise
            log.warning(
                "job %d of %s keeps convolutions and activations apart, as one call of both fails: %s",
                index, self._dnn, summarize_error(error),
            )  # fmt: skip
            return stage
        return own


def fuse(stage: nn.Module, but: Collection[int] = ()) -> nn.Module:
    """A copy that has the same tensors and fewer operations; the stage itself where there is nothing to fuse.

    but: which of the places that could be fused are left as they are, counted from 0 in the order in which they run.
    """
    if all(number in but for number, _ in enumerate(_patterns(stage))):
        return stage
    memo: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    own = copy.deepcopy(stage, memo)
    for number, pattern in enumerate(_patterns(own)):
        if number not in but:
            pattern.fuse()
    for graph_module in _graph_modules(own):
        graph_module.graph.lint()
        graph_module.recompile()
    return own


def fused_operations(graph_module: fx.GraphModule) -> frozenset[str]:
    """Names of the sums and ReLUs of a graph that become part of the convolution before them, and take no time then.

    As it is on GPUs on which cuDNN has a kernel for that: not for convolutions in groups.
    """
    return frozenset(
        node.name
        for pattern in _patterns(graph_module)
        if convolution_arguments(pattern.convolution)[-1] == 1
        for node in (pattern.sum, pattern.relu)
        if node is not None
    )


class _Race(TorchDispatchMode):
    """Inside the block each fused operation that runs on a GPU is timed against what it stands for.

    cuDNN has no fast kernel of its own for some, such as convolutions in groups, which then take ten times as long.
    lost: numbers of those that are slower, or refused, in the order in which they run.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lost: list[int] = []
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
            self.lost.append(self._run)
        self._run += 1
        return unfused(*args)


def _is_slower(args: tuple[Any, ...]) -> bool:
    """Whether the GPU takes longer for all at once, or the kernel is refused or cannot be compiled."""
    alone_ms = gpu_ms(lambda: unfused(*args))
    try:
        return gpu_ms(lambda: CONVOLUTION_RELU(*args)) > alone_ms
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if not isinstance(error, RuntimeError):  # by which cuDNN says that it has none
            log.warning("a kernel for a convolution with ReLU fails, and is not used: %s", summarize_error(error))
        return True


def _graph_modules(stage: nn.Module) -> Iterator[fx.GraphModule]:
    return (part for part in stage.modules() if isinstance(part, fx.GraphModule))


def _patterns(stage: nn.Module) -> Iterator[_Pattern]:
    """What can be fused, in the order in which it runs; each may be fused before the next is looked for."""
    for graph_module in _graph_modules(stage):
        for node in list(graph_module.graph.nodes):
            pattern = _pattern(node)
            if pattern is not None:
                yield pattern


@dataclass
class _Pattern:
    """relu(convolution), or relu(convolution + z); `sum`: the node that adds."""

    relu: fx.Node
    convolution: fx.Node
    sum: fx.Node | None = None
    z: fx.Node | None = None

    def fuse(self) -> None:
        graph = self.relu.graph
        image, weight, bias, *geometry = convolution_arguments(self.convolution)
        # Where all that it reads is there: what a mark behind the convolution tells is then the time of all of it.
        with graph.inserting_after(self.convolution if self.z is None else max(self.convolution, self.z)):
            one = graph.call_function(CONVOLUTION_RELU, (image, weight, bias, self.z, *geometry))
        one.meta = dict(self.relu.meta)
        self.relu.replace_all_uses_with(one)
        for node in (self.relu, self.sum, self.convolution):
            if node is not None:
                graph.erase_node(node)


def _pattern(relu: fx.Node) -> _Pattern | None:
    """What ends with this node and can be one call at its place; None where nothing can."""
    source = relu.args[0] if relu.target in _RELUS and relu.args else None
    if not isinstance(source, fx.Node) or len(source.users) > 1:
        return None
    if source.target in (aten.add.Tensor, aten.add_.Tensor):
        found = _sum_pattern(relu, source)
    else:
        found = _Pattern(relu, source) if _is_fusible(source) else None
    return found if found is not None and _nothing_happens_within(found) else None


def _sum_pattern(relu: fx.Node, total: fx.Node) -> _Pattern | None:
    left, right = arguments_of(total, "self", "other")
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or left is right:
        return None
    (scale,) = arguments_of(total, "alpha")
    # What is added in place stays visible to who else has the tensor written to; a convolution's has nobody else.
    choices = [(left, right)] if total.target is aten.add_.Tensor else [(left, right), (right, left)]
    choices = [(one, z) for one, z in choices if _is_fusible(one) and _are_alike(one, z)]
    if scale != 1 or not choices:
        return None
    # Of two, the later one: less lies between it and the sum.
    convolution, z = max(choices)
    return _Pattern(relu, convolution, total, z)


def _is_fusible(node: fx.Node) -> bool:
    """Whether it is a convolution of images that only one node reads."""
    tensor = traced(node)
    if node.target not in CONVOLUTIONS or len(node.users) != 1 or tensor is None or tensor.ndim != 4:
        return False
    return tensor.dtype in _DTYPES and not is_transposed(node)


def _are_alike(left: fx.Node, right: fx.Node) -> bool:
    one, other = traced(left), traced(right)
    return one is not None and other is not None and (one.shape, one.dtype) == (other.shape, other.dtype)


def _nothing_happens_within(pattern: _Pattern) -> bool:
    """Whether all of it may as well be computed at once.

    In between nothing may be written, as what is read would be another value then, and nothing unknown may happen.
    """
    node = pattern.convolution.next
    while node is not pattern.relu:
        if node is not pattern.sum and not _only_reads(node):
            return False
        node = node.next
    return True


def _only_reads(node: fx.Node) -> bool:
    if not node.all_input_nodes and not node.users:  # takes no tensor and gives none: a mark that takes the time
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    return node.op == "get_attr" or node.target is operator.getitem
