"""Arithmetic and memory traffic of operations, counted while they run: forward, backward and optimizer alike.

Conventions. Products (convolution, linear, attention): two operations per multiply-accumulate; additions of biases are
not counted. Normalization with batch statistics: 4 per element for mean and variance, 2 to normalize, 2 for scale and
shift; 9 per element in the backward pass. Pooling: one per element of each window. Copies: none. Any other operation:
one per element of its largest tensor. Bytes: each argument is read once and each result written once; views cost none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

_CONVOLUTIONS = {"convolution", "_convolution", "cudnn_convolution", "convolution_overrideable"}
#: Fused attention on a CPU, for which PyTorch has no count.
_ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": sdpa_flop,
    "_scaled_dot_product_flash_attention_for_cpu_backward": sdpa_backward_flop,
}
#: Index of the argument `training` of batch normalizations, forward and backward.
_TRAINING_AT = {
    "native_batch_norm": 5,
    "_native_batch_norm_legit": 5,
    "cudnn_batch_norm": 5,
    "native_batch_norm_backward": 7,
}
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
#: These write their first argument without reading it.
_OVERWRITES = {"fill_", "zero_", "copy_", "_foreach_zero_", "_foreach_copy_"}
_MOVES = _OVERWRITES | {
    "cat", "stack", "clone", "_to_copy", "contiguous", "constant_pad_nd", "index", "index_select", "gather",
    "zeros_like", "zeros", "new_zeros", "ones_like", "ones", "full", "full_like", "scalar_tensor", "roll", "flip",
    "repeat", "select_backward", "slice_backward", "_local_scalar_dense",
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """flops: arithmetic operations. bytes: read from and written to memory."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    @property
    def intensity(self) -> float:
        """Operations per byte; 0 without memory traffic."""
        return self.flops / self.bytes if self.bytes else 0.0


class WorkCounter(TorchDispatchMode):
    """Context that counts every operation, backward passes included, under the key that `where` returns then."""

    def __init__(self, where: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        self.counted: dict[Any, Work] = defaultdict(Work)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.counted[self._where()] += work_of(func, args, kwargs, result)
        return result


def work_of(func: Any, args: Any, kwargs: Any, result: Any) -> Work:
    """The work of one ATen operation that has run. func: overload of the operation."""
    name = func.overloadpacket.__name__
    taken, given = list(_tensors((args, kwargs))), list(_tensors(result))
    if name in _ALLOCATIONS:
        return Work()
    storages = {tensor.untyped_storage().data_ptr() for tensor in taken if tensor.numel()}
    changed = _changed(func, args, kwargs)
    fresh = [tensor for tensor in given if tensor.numel() and tensor.untyped_storage().data_ptr() not in storages]
    if not fresh and not changed:  # a view
        return Work()
    overwritten = {id(tensor) for tensor in changed} if name in _OVERWRITES else set()
    read = {id(tensor): _bytes(tensor) for tensor in taken if id(tensor) not in overwritten}
    moved = sum(read.values()) + sum(_bytes(tensor) for tensor in (*changed, *fresh))
    return Work(_flops(func, name, args, kwargs, result, taken, given), moved)


def _flops(func: Any, name: str, args: Any, kwargs: Any, result: Any, taken: list[Tensor], given: list[Tensor]) -> int:
    if name in _MOVES:
        return 0
    if name in _CONVOLUTIONS:
        return _convolution(args[0], args[1], result, bool(args[6]) if len(args) > 6 else False)
    if name == "convolution_backward":  # PyTorch's count is too high for groups
        # The gradients of input and of weight each need as many products as the forward pass.
        return _convolution(args[1], args[2], args[0], bool(args[7])) * sum(map(bool, args[10][:2]))
    formula: Any = _ATTENTION.get(name) or flop_registry.get(func.overloadpacket)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    largest = max((tensor.numel() for tensor in (*taken, *given)), default=0)
    if "norm" in name and ("batch" in name or "layer" in name or "group" in name):
        return _normalization(name, args, given if "backward" not in name else taken)
    if "pool" in name:
        return _pooling(name, args, given, largest)
    return largest


def _convolution(image: Tensor, weight: Tensor, output: Tensor, transposed: bool) -> int:
    return 2 * (image if transposed else output).numel() * prod(weight.shape[1:])


def _normalization(name: str, args: Any, tensors: list[Tensor]) -> int:
    elements = max(tensor.numel() for tensor in tensors)
    index = _TRAINING_AT.get(name)
    batch_statistics = "no_training" not in name and (index is None or bool(args[index]))
    if "backward" in name:
        return elements * (9 if batch_statistics else 6)
    weight = args[2] if "layer" in name else args[1]  # native_layer_norm takes the shape before it
    return elements * ((6 if batch_statistics else 2) + (2 if weight is not None else 0))


def _pooling(name: str, args: Any, given: list[Tensor], largest: int) -> int:
    if "adaptive" in name:
        return largest
    if "backward" in name:
        window = 1 if "max" in name else _window(args[2], args[1].dim() - 2)  # only the maximum gets the gradient
        return int(args[0].numel()) * window
    return given[0].numel() * _window(args[1], args[0].dim() - 2)


def _window(sides: Any, axes: int) -> int:
    sides = [sides] if isinstance(sides, int) else list(sides)
    return prod(sides) if len(sides) > 1 else int(sides[0]) ** axes


def _changed(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Tensors that the operation changes in place."""
    found: list[Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(args[index] if index < len(args) else kwargs.get(argument.name))
    return found


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _bytes(tensor: Tensor) -> int:
    """Size in memory: an expanded tensor repeats its elements without occupying memory for the copies."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
