"""Scales random weights so that networks used for timing compute normal numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


def balance(module: nn.Module, image: torch.Tensor) -> None:
    """Scale each layer in place so that its outputs on `image` have unit variance (LSUV, Mishkin and Matas 2015).

    Otherwise random weights of deep networks overflow in half precision, or produce subnormal numbers, which are slow
    on CPUs and change the power draw of GPUs. image: (1, 3, h, w) float32.
    """

    def scale(layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        deviation = float(output.std()) if output.numel() > 1 else 0.0
        if not (math.isfinite(deviation) and deviation > 0.0):
            return output
        for parameter in layer.parameters(recurse=False):
            parameter.div_(deviation)
        return output / deviation

    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(scale) for layer in layers]
    try:
        with torch.no_grad():
            module(image)
    finally:
        for hook in hooks:
            hook.remove()


def random_image(width: int, height: int, seed: int = 0) -> torch.Tensor:
    """Standard normal (1, 3, height, width) float32, the same for the same seed."""
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed))
