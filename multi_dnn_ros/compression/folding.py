"""Folds the batch normalization of a VGG into its weights, which gives the plain VGG with the same outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from multi_dnn_ros.models.decomposed import Plan, SvdPlan, TuckerConv2d, TuckerPlan, apply_plan
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import load_network

SUFFIX = "_bn"
#: Largest allowed difference of the outputs, relative to the largest output.
_TOLERANCE = 1e-3
_TEST_PX = 64


def has_plain_form(model: str) -> bool:
    """Whether torchvision also has the network without batch normalization."""
    return model.startswith("torchvision:vgg") and model.endswith(SUFFIX)


def fold_batch_norm(
    network: nn.Module, model: str, num_classes: int, plan: Mapping[str, TuckerPlan | SvdPlan]
) -> tuple[nn.Module, str, Plan]:
    """The plain network with the same outputs, its name, and the plan with its layers' names.

    network: built from `model`, with `plan` applied, in eval mode; not changed. Raises ModelError if the model has no
    plain form, see :func:`has_plain_form`, or if the outputs for random images differ.
    """
    if not has_plain_form(model):
        raise ModelError(f"{model}: only torchvision's vgg*_bn have a form without batch normalization")
    name = model.removesuffix(SUFFIX)
    plain = load_network(name, weights="random", num_classes=num_classes).module
    with_norm = load_network(model, weights="random", num_classes=num_classes).module
    plain_names = dict(zip(_weighted(with_norm), _weighted(plain), strict=True))
    renamed = {plain_names[layer]: chain for layer, chain in plan.items()}
    apply_plan(plain, renamed, name)
    norms = _norm_after(with_norm)
    with torch.no_grad():
        for name_with_norm, plain_name in plain_names.items():
            target = plain.get_submodule(plain_name)
            target.load_state_dict(network.get_submodule(name_with_norm).state_dict())
            if name_with_norm in norms:
                _fold(target, network.get_submodule(norms[name_with_norm]))
    plain = plain.eval()
    _check_equal(network, plain, model)
    return plain, name, renamed


def _weighted(network: nn.Module) -> list[str]:
    """Names of the convolutions and fully connected layers, in order."""
    return [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def _norm_after(network: nn.Module) -> dict[str, str]:
    """Name of the batch normalization after each convolution."""
    found, last = {}, ""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            last = name
        elif isinstance(module, nn.BatchNorm2d):
            found[last] = name
    return found


def _fold(target: nn.Module, norm: nn.Module) -> None:
    """Fold `norm` into the last convolution of `target`, which is a convolution or a chain of convolutions."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    last = list(target.children())[-1] if isinstance(target, TuckerConv2d) else target
    assert isinstance(last, nn.Conv2d)
    assert last.bias is not None
    weight, bias = fuse_conv_bn_weights(
        last.weight, last.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    last.weight.copy_(weight)
    last.bias.copy_(bias)


def _check_equal(network: nn.Module, plain: nn.Module, model: str) -> None:
    image = torch.randn(2, 3, _TEST_PX, _TEST_PX, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = network(image), plain(image)
    difference = float((expected - found).abs().max() / expected.abs().max())
    if not difference <= _TOLERANCE:
        raise ModelError(f"{model}: without batch normalization its outputs differ by {difference:.2g} of the largest")
