"""Makes networks that onnx2torch converted traceable.

ONNX gives shapes, pads and slices as tensors. Where such a tensor is a constant of the file, the operation is rewritten
with plain numbers: a graph whose shapes come out of tensors cannot be exported, and the numbers never change anyway.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F


def fix_shapes(network: fx.GraphModule) -> None:
    """Rewrite, in place, every operation of `_REWRITES` whose arguments behind the first are constants of the file."""
    for node in list(network.graph.find_nodes(op="call_module")):
        layer: Any = network.get_submodule(str(node.target))
        rewrite = _REWRITES.get(type(layer).__name__)
        numbers = [_constant(network, argument) for argument in node.args[1:]]
        if rewrite is None or node.kwargs or any(number is _UNKNOWN for number in numbers):
            continue
        arguments = rewrite.arguments(layer, numbers)
        if arguments is not None:
            node.op, node.target, node.args = "call_function", rewrite.function, (node.args[0], *arguments)
    network.graph.eliminate_dead_code()
    network.recompile()


_UNKNOWN = object()


def _constant(network: fx.GraphModule, argument: Any) -> Any:
    """The numbers that an argument always has, or _UNKNOWN."""
    if not isinstance(argument, fx.Node):
        return argument
    value: Any = None
    if argument.op == "get_attr":
        value = operator.attrgetter(str(argument.target))(network)
    elif argument.op == "call_module":
        value = getattr(network.get_submodule(str(argument.target)), "value", None)
    return value.tolist() if isinstance(value, torch.Tensor) else _UNKNOWN


def _reshape(source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return source.reshape([source.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)])


def _expand(source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return source.expand(torch.broadcast_shapes(source.shape, tuple(sizes)))


def _pad(source: torch.Tensor, pads: list[int], value: float, mode: str) -> torch.Tensor:
    """ONNX: all begins, then all ends, first axis first. PyTorch: pairs, last axis first, leading zeros left out."""
    axes = len(pads) // 2
    pairs = [(pads[axis], pads[axes + axis]) for axis in reversed(range(axes))]
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    flat = [amount for pair in pairs for amount in pair]
    modes = {"edge": "replicate", "wrap": "circular"}
    return F.pad(source, flat, modes.get(mode, mode), value if mode == "constant" else None)


def _slice(
    source: torch.Tensor,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
) -> torch.Tensor:
    for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[position] if axes else position, steps[position] if steps else 1
        if step < 0:
            raise NotImplementedError(f"Slice with step {step}: allowed are steps above 0")
        index = [slice(None)] * source.ndim
        index[axis] = slice(start, end, step)
        source = source[tuple(index)]
    return source


def _select(source: torch.Tensor, index: int, axis: int) -> torch.Tensor:
    return source.select(axis, index)


def _resize(
    source: torch.Tensor,
    scales: list[float] | None,
    sizes: list[int] | None,
    mode: str,
    align_corners: bool | None,
) -> torch.Tensor:
    kept = list(source.shape[:2])
    if (sizes and sizes[:2] != kept) or (scales and list(scales[:2]) != [1.0, 1.0]):
        raise NotImplementedError("Resize of batch or channels: allowed are the axes behind them")
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[source.ndim]
    return F.interpolate(
        source,
        size=sizes[2:] if sizes else None,
        scale_factor=scales[2:] if scales else None,
        mode={"nearest": "nearest", "linear": linear, "cubic": "bicubic"}[mode],
        align_corners=align_corners,
    )


@dataclass(frozen=True)
class _Rewrite:
    """function takes the input and what `arguments` makes of layer and numbers; None there: leave the layer alone."""

    function: Callable[..., torch.Tensor]
    arguments: Callable[[Any, list[Any]], list[Any] | None] = lambda layer, numbers: numbers


def _resize_arguments(layer: Any, numbers: list[Any]) -> list[Any] | None:
    roi, scales, sizes = [*numbers, None, None, None][:3]
    return None if roi and not layer.ignore_roi else [scales, sizes, layer.onnx_mode, layer.align_corners]


_REWRITES = {
    "OnnxReshape": _Rewrite(_reshape),
    "OnnxExpand": _Rewrite(_expand),
    "OnnxSlice": _Rewrite(_slice),
    "OnnxPadDynamic": _Rewrite(_pad, lambda layer, numbers: [*[*numbers, 0.0][:2], layer.mode]),
    # A list of indices is an ordinary operation on tensors.
    "OnnxGather": _Rewrite(
        _select, lambda layer, numbers: [*numbers, layer._axis] if isinstance(numbers[0], int) else None
    ),
    "OnnxResize": _Rewrite(_resize, _resize_arguments),
}
