"""Kind, arithmetic, memory traffic and parameters of each operation of a traced graph, computed from its shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from multi_dnn_ros.models.trace import attribute, is_selection, tensor_of

Shape = tuple[int, ...]

#: Kinds of operations whose times depend on the same features; every operation has one.
KINDS = (
    "convolution",
    "1x1 convolution",
    "grouped convolution",
    "depthwise convolution",
    "fully connected",
    "matrix product",
    "attention",
    "pooling",
    "normalization",
    "element-wise",
    "interpolation",
    "movement",
    "view",
    "other",
)
_BY_NAME = {
    "linear": "fully connected",
    "addmm": "fully connected",
    "mm": "matrix product",
    "bmm": "matrix product",
    "matmul": "matrix product",
    "baddbmm": "matrix product",
    "scaled_dot_product_attention": "attention",
    "mean": "pooling",
    "dropout": "view",
    **dict.fromkeys(("cat", "stack", "clone", "copy", "_to_copy", "constant_pad_nd", "pad", "roll", "index_select",
                     "gather", "index", "embedding", "contiguous", "repeat", "to", "flip"), "movement"),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "hardtanh", "hardswish", "hardsigmoid", "gelu", "silu",
                     "elu", "leaky_relu", "relu6", "prelu"), "element-wise"),
}  # fmt: skip
_BY_PART = (("pool", "pooling"), ("norm", "normalization"), ("upsample", "interpolation"), ("grid_sample", "other"))


@dataclass(frozen=True)
class LayerWork:
    """What the time of an operation, or of a layer, depends on.

    kind: one of KINDS. macs: multiply-accumulates as counted in the paper (convolutions and matrix products; half of
    PyTorch's FLOP count). flops: arithmetic operations, two per MAC; without MACs, one per input or output element,
    whichever are more (per window element for pooling). parameters: number of weights read. bytes_read: inputs and
    parameters, each once. bytes_written: results. Views count as 0. window: kernel height times width of a convolution
    or pooling, else 1. groups: those of a convolution, else 1. channels_in, channels_out: size of axis 1 of the first
    input and output (0: none). pixels: output positions per channel, over all images of the batch.
    """

    kind: str
    macs: int
    flops: int
    parameters: int
    bytes_read: int
    bytes_written: int
    window: int
    groups: int
    channels_in: int
    channels_out: int
    pixels: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic operations per byte read or written."""
        return self.flops / self.moved if self.moved else 0.0


def counter(graph_module: fx.GraphModule) -> Callable[[fx.Node], LayerWork]:
    """A function that describes each operation of a graph of :func:`multi_dnn_ros.models.trace.trace`."""
    traced = [tensor for node in graph_module.graph.nodes if (tensor := tensor_of(node)) is not None]
    fake_mode = detect_fake_mode(traced)

    def fake_value(node: fx.Node) -> Any:
        if node.op != "get_attr":
            return node.meta.get("val")
        value = attribute(graph_module, node)
        if not fake_mode or not isinstance(value, torch.Tensor):
            return value
        with fake_mode:  # on the CPU, where the graph was traced, wherever its weights are now
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")

    def describe(node: fx.Node) -> LayerWork:
        name = operation_name(node)
        sources = [source for source in node.all_input_nodes if source.op != "get_attr"]
        first = next((shape for source in sources for shape in shapes_of(source)), ())
        last = next(iter(shapes_of(node)), ())
        channels_in, channels_out = (shape[1] if len(shape) > 1 else 0 for shape in (first, last))
        pixels = math.prod(last) // (channels_out or 1)
        if is_selection(node) or is_view(node) or not isinstance(node.target, torch._ops.OpOverload) or not fake_mode:
            return LayerWork("view", 0, 0, 0, 0, 0, 1, 1, channels_in, channels_out, pixels)
        args = fx.node.map_arg(node.args, fake_value)
        kwargs = fx.node.map_arg(node.kwargs, fake_value)
        # The products inside fused attention kernels are not counted.
        with fake_mode, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as flops, torch.no_grad():
            result = node.target(*args, **kwargs)
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        written = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        weights = [fake_value(source) for source in node.all_input_nodes if source.op == "get_attr"]
        kind, window, groups = _kind(node, name, read)
        counted = int(flops.get_total_flops())
        input_elements = sum(tensor.numel() for tensor in read)
        output_elements = sum(tensor.numel() for tensor in written)
        return LayerWork(
            kind=kind,
            macs=counted // 2,
            flops=counted or max(input_elements, output_elements * window),
            parameters=sum(weight.numel() for weight in weights if isinstance(weight, torch.Tensor)),
            bytes_read=sum(bytes_of(tensor) for tensor in read),
            bytes_written=sum(bytes_of(tensor) for tensor in written),
            window=window,
            groups=groups,
            channels_in=channels_in,
            channels_out=channels_out,
            pixels=pixels,
        )

    return describe


def is_view(node: fx.Node) -> bool:
    """Whether the operation only reinterprets its input's memory."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target.is_view)


def bytes_of(tensor: torch.Tensor | None) -> int:
    """Size of all elements in bytes; 0 for None."""
    return 0 if tensor is None else int(tensor.numel()) * tensor.element_size()


def operation_name(node: fx.Node) -> str:
    """ATen name without overload."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.name()).partition("::")[2].partition(".")[0]
    return str(getattr(node.target, "__name__", node.target))


def shapes_of(node: fx.Node) -> tuple[Shape, ...]:
    """Shapes of the tensors that the node returned when it was traced."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return tuple(tuple(map(int, leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _kind(node: fx.Node, name: str, read: list[torch.Tensor]) -> tuple[str, int, int]:
    """(kind, window, groups)."""
    if "conv" in name and len(read) > 1 and read[1].dim() > 2:
        weight = read[1]
        window = int(weight.shape[2:].numel())
        per_group = int(weight.shape[1])
        channels = int(read[0].shape[1])
        groups = channels // per_group if "transpose" not in name and per_group else 1
        if groups > 1:
            return ("depthwise convolution" if per_group == 1 else "grouped convolution"), window, groups
        return ("1x1 convolution" if window == 1 else "convolution"), window, 1
    if name in _BY_NAME:
        return _BY_NAME[name], 1, 1
    for part, kind in _BY_PART:
        if part in name:
            window = _pool_window(node) if kind == "pooling" and "adaptive" not in name else 1
            return kind, window, 1
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return "element-wise", 1, 1
    return "other", 1, 1


def _pool_window(node: fx.Node) -> int:
    sides = node.args[1] if len(node.args) > 1 else 1
    if isinstance(sides, int):
        return sides * sides
    if isinstance(sides, (list, tuple)):
        numbers = [side for side in sides if isinstance(side, int)]
        return numbers[0] ** 2 if len(numbers) == 1 else int(torch.Size(numbers).numel())
    return 1
