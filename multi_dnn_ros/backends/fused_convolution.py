"""Convolution, bias, residual addition and ReLU as one operation: on a GPU one kernel, of cuDNN or our own.

Registered as ``torch.ops.multi_dnn_ros.convolution_relu``, so that traced graphs can contain it and compilers accept
it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.nn import functional

from multi_dnn_ros.backends.compilers import missing_compiler

# Not torch.library.custom_op: its first call imports Dynamo, which takes seconds and only compilation needs.
_library = torch.library.Library("multi_dnn_ros", "FRAGMENT")
_library.define(
    "convolution_relu(Tensor image, Tensor weight, Tensor? bias, Tensor? z, int[2] stride, int[2] padding, "
    "int[2] dilation, int groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
#: relu(convolution(image) + bias + z). image: (B, C, H, W); z: has the result's shape, or None. The arguments after z
#: (stride, padding, dilation, groups) are called `geometry` in this module.
CONVOLUTION_RELU = torch.ops.multi_dnn_ros.convolution_relu.default


def unfused(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    """CONVOLUTION_RELU by PyTorch's separate operations."""
    result = functional.conv2d(image, weight, bias, *geometry)
    return (result if z is None else result.add_(z)).relu_()


@torch.library.impl(_library, "convolution_relu", "CompositeExplicitAutograd")
def _default_kernel(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    return _empty_result(image, weight, *geometry).copy_(unfused(image, weight, bias, z, *geometry))


@torch.library.impl(_library, "convolution_relu", "CUDA")
def _cuda_kernel(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    layout = _layout(image, weight)
    if z is not None:
        z = z.contiguous(memory_format=layout)  # the kernels expect the result's layout
    call = functools.partial(cudnn_convolution_relu, image, weight, bias, z, *geometry)
    if (
        layout is torch.channels_last
        and image.element_size() == 2
        and (triton := _triton_kernel())
        and triton.fits(image, weight)
    ):
        result = _empty_result(image, weight, *geometry)
        image, weight = (tensor.contiguous(memory_format=layout) for tensor in (image, weight))
        stride, padding, dilation, _ = geometry
        work = triton.Convolution(image, weight, bias, z, result, (*stride, *padding, *dilation))
        if triton.convolution_relu(work, call):
            return result
    return call()


def cudnn_convolution_relu(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    """CONVOLUTION_RELU by cuDNN's fused operation, on a GPU. Raises RuntimeError if cuDNN has no kernel for it."""
    if z is None:
        return torch.cudnn_convolution_relu(image, weight, bias, *geometry)
    return torch.cudnn_convolution_add_relu(image, weight, z, 1.0, bias, *geometry)


@functools.cache
def _triton_kernel() -> Any:
    """The module with our own kernel; None if it cannot be compiled."""
    if missing_compiler(torch.device("cuda")):
        return None
    # Imported here because importing Triton takes a second.
    from multi_dnn_ros.backends import triton_convolution

    return triton_convolution


def _fake(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    return _empty_result(image, weight, *geometry)


def _empty_result(
    image: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """Memory for the result, in cuDNN's layout: channels_last if the images or the weights are."""
    sides = (
        (side + 2 * pad - spread * (window - 1) - 1) // step + 1
        for side, window, step, pad, spread in zip(
            image.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
        )
    )
    return torch.empty(
        (image.shape[0], weight.shape[0], *sides),
        dtype=image.dtype,
        device=image.device,
        memory_format=_layout(image, weight),
    )


def _layout(image: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    channels_last = torch.channels_last in (suggest_memory_format(image), suggest_memory_format(weight))
    return torch.channels_last if channels_last else torch.contiguous_format


torch.library.register_fake("multi_dnn_ros::convolution_relu", _fake, lib=_library)
