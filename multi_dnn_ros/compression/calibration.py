"""Statistics of a network's layers on calibration images, and cores of decomposed convolutions fitted to them.

The weights norm ||W - W'|| treats all inputs of a layer alike. What matters is the error of its output on real images,
E ||(W - W') x||^2 = ||(W - W') S||^2 with S S^T = E[x x^T] (Kalle et al., NeurIPS 2025, arXiv 2511.04494). Their x is
the whole patch below the kernel, whose second moments need gigabytes for deep networks. Here the factors are found from
the second moments of single channels, which are small; then the core is fitted by least squares to the original's
outputs, for which only patches of the few projected channels are needed. On the package's networks, alternating over
whole patches gave the same scores.

All statistics are those of the original network. Memory is bounded by the layers' sizes, whatever the number of images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.decomposed import TuckerConv2d
from multi_dnn_ros.models.errors import ModelError

Matrix = NDArray[np.float64]
#: Inputs of one inference each, of the network's device. They are read twice.
Images = Sequence[tuple[Tensor, ...]]
#: Called with a layer, its input and its output, for each call.
_Read = Callable[[nn.Module, Tensor, Tensor], None]


@dataclass(frozen=True)
class Moments:
    """Second moments (not centered) of a layer's values over all images and positions, one matrix per group.

    inputs: (groups, I, I) of the channels of a convolution's input; empty for a fully connected layer, which does not
    need them. outputs: (groups, O, O) of the output without bias.
    """

    inputs: Matrix
    outputs: Matrix


def measure_moments(
    network: nn.Module, layers: Mapping[str, nn.Module], images: Images, progress: Callable[[], None] = lambda: None
) -> dict[str, Moments]:
    """Second moments of convolutions and fully connected layers by name, in one pass over `images`.

    progress: called after each inference. Raises ModelError if the network cannot run on the images, or if a layer's
    values are not finite.
    """
    sums: dict[nn.Module, list[Tensor]] = {}
    counts: dict[nn.Module, int] = {}

    def read(layer: nn.Module, x: Tensor, y: Tensor) -> None:
        outputs = _by_group(layer, _without_bias(layer, y))
        found = [_products(outputs, outputs)]
        if isinstance(layer, nn.Conv2d):
            inputs = _by_group(layer, x)
            # An output position counts as one, an input position as the share that corresponds to it.
            found.append(_products(inputs, inputs) * (outputs.shape[-1] / inputs.shape[-1]))
        sums[layer] = [a + b for a, b in zip(sums[layer], found, strict=True)] if layer in sums else found
        counts[layer] = counts.get(layer, 0) + outputs.shape[0] * outputs.shape[-1]

    _run(network, list(layers.values()), images, read, progress)
    moments = {}
    for name, layer in layers.items():
        outputs, *inputs = [(total / counts[layer]).cpu().numpy() for total in sums[layer]]
        moments[name] = Moments(inputs[0] if inputs else np.empty((0, 0, 0)), outputs)
        if not all(np.isfinite(matrix).all() for matrix in (outputs, *inputs)):
            raise ModelError(f"layer {name}: its values are not finite for the calibration images")
    return moments


def fit_cores(
    network: nn.Module, layers: Mapping[str, nn.Module], chains: Mapping[str, nn.Module], images: Images,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, float]:  # fmt: skip
    """Fit the cores of `chains`, in place, so that each returns nearly what its convolution in `network` does.

    layers, chains: by name. Chains without an input factor are optimal already and stay. Output factors must have
    orthonormal columns. Returns the relative error of the output of each fitted chain, sqrt(E ||y - y'||^2 /
    E ||y||^2). With few images, a core stays close to the given one.
    """
    fitted = {
        layers[name]: chain
        for name, chain in chains.items()
        if isinstance(chain, TuckerConv2d) and hasattr(chain, "in_factor")
    }
    sums: dict[nn.Module, list[Tensor]] = {}
    counts: dict[nn.Module, int] = {}

    def read(layer: nn.Module, x: Tensor, y: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        chain = fitted[layer]
        patches = _by_group(layer, _patches(layer, chain.get_submodule("in_factor")(x)))
        outputs = _without_bias(layer, y)
        # The best core for y = B core patches, with B orthonormal, is the best one for B^T y.
        targets = _by_group(layer, _projected(chain, outputs))
        found = [_products(patches, patches), _products(targets, patches), outputs.double().square().sum()]
        sums[layer] = [a + b for a, b in zip(sums[layer], found, strict=True)] if layer in sums else found
        counts[layer] = counts.get(layer, 0) + patches.shape[0] * patches.shape[-1]

    _run(network, list(fitted), images, read, progress)
    errors = {}
    for name, layer in layers.items():
        if layer not in fitted:
            continue
        core_layer = fitted[layer].core
        patch, target, energy = (total / counts[layer] for total in sums[layer])
        weight = core_layer.weight.detach().double()
        core = weight.reshape(len(patch), -1, patch.shape[-1])
        # Ridge towards the given core. It vanishes with the number of samples per unknown.
        size = patch.shape[-1]
        ridge = patch.diagonal(dim1=-2, dim2=-1).mean(-1) * (size / counts[layer]) + 1e-30
        damped = patch + ridge[:, None, None] * torch.eye(size, dtype=patch.dtype, device=patch.device)
        core = core + torch.linalg.solve(damped, target - core @ patch, left=False)
        with torch.no_grad():
            core_layer.weight.copy_(core.reshape(weight.shape))
        lost = energy - 2 * (core * target).sum() + (core * (core @ patch)).sum()
        errors[name] = float((lost / energy).clamp(min=0.0).sqrt()) if float(energy) > 0 else 0.0
    return errors


def square_root(moment: Matrix) -> tuple[Matrix, Matrix]:
    """S and its inverse, symmetric, with S S = `moment` (n, n). Directions without energy get a little of it."""
    values, vectors = np.linalg.eigh(moment)
    if not values[-1] > 0.0:
        return np.eye(len(values)), np.eye(len(values))
    root = np.sqrt(np.maximum(values, 1e-6 * values[-1]))
    return (vectors * root) @ vectors.T, (vectors / root) @ vectors.T


def _run(
    network: nn.Module, layers: Sequence[nn.Module], images: Images, read: _Read, progress: Callable[[], None]
) -> None:
    def hook(layer: nn.Module, arguments: tuple[Any, ...], result: Tensor) -> None:
        read(layer, arguments[0], result)

    hooks = [layer.register_forward_hook(hook) for layer in layers]
    try:
        for inputs in images:
            with torch.no_grad():
                network(*inputs)
            progress()
    except Exception as error:
        shapes = [tuple(tensor.shape) for tensor in inputs]
        raise ModelError(
            f"{type(network).__name__} cannot be run on calibration images {shapes}: {summarize_error(error)}"
        ) from None
    finally:
        for registered in hooks:
            registered.remove()


def _without_bias(layer: Any, y: Tensor) -> Tensor:
    if layer.bias is None:
        return y
    bias: Tensor = layer.bias if isinstance(layer, nn.Linear) else layer.bias.reshape(1, -1, 1, 1)
    return y - bias


def _by_group(layer: nn.Module, values: Tensor) -> Tensor:
    """(N, groups, channels, positions) of a convolution's (N, C, H, W), or of a fully connected layer's (..., C)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(-1, values.shape[-1]).T[None, None]
    groups = int(getattr(layer, "groups", 1))
    return values.reshape(values.shape[0], groups, values.shape[1] // groups, -1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Sum of the outer products over images and positions: (groups, a, b) float64."""
    return torch.einsum("ngap,ngbp->gab", left, right).double()


def _patches(layer: nn.Conv2d, z: Tensor) -> Tensor:
    """What the kernel of `layer` covers at each output position of `z` (N, C, H, W): (N, C * kernel, positions)."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(z, layer._reversed_padding_repeated_twice, mode)
    kernel, dilation, stride = (tuple(map(int, pair)) for pair in (layer.kernel_size, layer.dilation, layer.stride))
    return functional.unfold(padded, kernel, dilation, 0, stride)


def _projected(chain: TuckerConv2d, outputs: Tensor) -> Tensor:
    last: Any = dict(chain.named_children()).get("out_factor")
    if last is None:
        return outputs
    projected: Tensor = functional.conv_transpose2d(outputs, last.weight, groups=last.groups)
    return projected
