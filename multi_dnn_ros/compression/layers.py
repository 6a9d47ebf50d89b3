"""The layers of a network for decomposition: shapes, MACs, and whether each can be decomposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.decomposed import SvdPlan, TuckerPlan, check_ranks, is_plain
from multi_dnn_ros.models.errors import ModelError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
#: Fully connected layers with fewer weights are not worth a second kernel.
LARGE_LINEAR = 1_000_000


@dataclass(frozen=True)
class Layer:
    """A convolution or fully connected layer of a network.

    name: qualified name. kept: the reason why it must not be decomposed; empty if it may be. calls: input and output
    shape of every call in one inference.
    """

    name: str
    module: nn.Module
    kept: str
    calls: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = field(repr=False)

    @property
    def channels(self) -> tuple[int, int]:
        """(inputs, outputs) per group."""
        module: Any = self.module
        if isinstance(module, nn.Linear):
            return module.in_features, module.out_features
        return module.in_channels // module.groups, module.out_channels // module.groups

    @property
    def kernel(self) -> int:
        """Number of weights per pair of input and output channel."""
        return int(np.prod(getattr(self.module, "kernel_size", (1,))))

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))

    def macs(self, plan: TuckerPlan | SvdPlan | None = None) -> int:
        """Multiply-accumulates per inference over all calls; with `plan`, of the decomposed layer."""
        return sum(self._call_macs(before, after, plan) for before, after in self.calls)

    def _call_macs(self, before: tuple[int, ...], after: tuple[int, ...], plan: TuckerPlan | SvdPlan | None) -> int:
        inputs, outputs = self.channels
        if isinstance(self.module, nn.Linear):
            rows = int(np.prod(before[:-1]))
            return rows * (plan.rank * (inputs + outputs) if isinstance(plan, SvdPlan) else inputs * outputs)
        pixels_before, pixels_after = (shape[0] * int(np.prod(shape[2:])) for shape in (before, after))
        if "Transpose" in type(self.module).__name__:
            return self.groups * pixels_before * inputs * outputs * self.kernel
        if not isinstance(plan, TuckerPlan):
            return self.groups * pixels_after * inputs * outputs * self.kernel
        assert isinstance(self.module, nn.Conv2d)
        in_rank, out_rank = check_ranks(self.module, plan)
        macs = pixels_after * in_rank * out_rank * self.kernel
        macs += pixels_before * inputs * in_rank if plan.in_rank is not None else 0
        macs += pixels_after * outputs * out_rank if plan.out_rank is not None else 0
        return self.groups * macs

    @cached_property
    def unfoldings(self) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """Singular values of the unfoldings along inputs and along outputs, one descending array (channels,) per group.

        For a fully connected layer, both lists are the same.
        """
        module: Any = self.module
        weight: torch.Tensor = module.weight.detach().cpu()
        if isinstance(self.module, nn.Linear):
            values = [_singular_values(weight.float().numpy())]
            return values, values
        groups = weight.double().numpy().reshape(self.groups, -1, *weight.shape[1:])
        outputs = [_singular_values(group.reshape(group.shape[0], -1)) for group in groups]
        inputs = [_singular_values(group.swapaxes(0, 1).reshape(group.shape[1], -1)) for group in groups]
        return inputs, outputs


def list_layers(network: nn.Module, inputs: tuple[torch.Tensor, ...], *, linear: bool = False) -> list[Layer]:
    """All convolutions and fully connected layers of `network`, in the order of named_modules().

    inputs: example inputs; only shapes are propagated. linear: whether fully connected layers of at least
    LARGE_LINEAR weights may be decomposed. Raises ModelError if the network cannot run on such inputs.
    """
    found = {name: layer for name, layer in network.named_modules() if isinstance(layer, (*_CONVOLUTIONS, nn.Linear))}
    calls = _calls(network, inputs, list(found.values()))
    return [
        Layer(name, layer, _kept(layer, bool(calls[layer]), linear), tuple(calls[layer]))
        for name, layer in found.items()
    ]


def _calls(network: nn.Module, inputs: tuple[torch.Tensor, ...], layers: Sequence[nn.Module]) -> dict[nn.Module, list]:
    calls: dict[nn.Module, list] = {layer: [] for layer in layers}

    def record(layer: nn.Module, arguments: Any, result: torch.Tensor) -> None:
        calls[layer].append((tuple(arguments[0].shape), tuple(result.shape)))

    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        run_on_shapes(network, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def run_on_shapes(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Run one inference on shapes without values. Raises ModelError if the network cannot run on `inputs`."""
    shapes = [tuple(tensor.shape) for tensor in inputs]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            network(*(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) for tensor in inputs))
    except Exception as error:
        raise ModelError(
            f"{type(network).__name__} cannot be run on inputs {shapes}: {summarize_error(error)}"
        ) from None


def _kept(layer: nn.Module, runs: bool, linear: bool) -> str:
    """The reason why a layer must not be decomposed; empty if it may be."""
    if not runs:
        return "takes no part in inference"
    if isinstance(layer, nn.Linear):
        if not linear:
            return "fully connected: SVD not requested"
        if layer.weight.numel() < LARGE_LINEAR:
            return f"fully connected, fewer than {LARGE_LINEAR} weights"
        return "" if is_plain(layer, nn.Linear) else f"{type(layer).__name__}: more than a plain Linear"
    if "Transpose" in type(layer).__name__:
        return "transposed convolution"
    if not isinstance(layer, nn.Conv2d):
        return f"{type(layer).__name__}: only Conv2d is decomposed"
    if all(side == 1 for side in layer.kernel_size):
        return "1x1: is a matrix already"
    if layer.groups == layer.in_channels:
        return "depthwise: has no input channels to reduce" if layer.groups > 1 else "one input channel"
    if not is_plain(layer, nn.Conv2d):
        return f"{type(layer).__name__}: more than a plain Conv2d"
    return ""


def _singular_values(matrix: NDArray[Any]) -> NDArray[np.float64]:
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    values: NDArray[np.float64] = np.sqrt(np.maximum(np.linalg.eigvalsh(gram.astype(np.float64))[::-1], 0.0))
    return values
