"""A convolution, its bias, a tensor that is added and the ReLU behind as one operation: on a GPU one kernel, of
cuDNN's or our own.

``torch.ops.multi_dnn_ros.convolution_relu``, which graphs may hold and compilers take as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.nn import functional

from multi_dnn_ros.backends.compilers import missing_compiler

# Not by torch.library.custom_op, whose first call imports Dynamo: seconds that only who compiles should wait.
_library = torch.library.Library("multi_dnn_ros", "FRAGMENT")
_library.define(
    "convolution_relu(Tensor image, Tensor weight, Tensor? bias, Tensor? z, int[2] stride, int[2] padding, "
    "int[2] dilation, int groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
#: relu(convolution of image + bias + z). image: (B, C, H, W); z: of the result's shape, or None. What follows them is
#: called `geometry` here.
CONVOLUTION_RELU = torch.ops.multi_dnn_ros.convolution_relu.default


def unfused(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    """The same by PyTorch's single operations."""
    result = functional.conv2d(image, weight, bias, *geometry)
    return (result if z is None else result.add_(z)).relu_()


@torch.library.impl(_library, "convolution_relu", "CompositeExplicitAutograd")
def _anywhere(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    return _place(image, weight, *geometry).copy_(unfused(image, weight, bias, z, *geometry))


@torch.library.impl(_library, "convolution_relu", "CUDA")
def _on_cuda(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    layout = _layout(image, weight)
    if z is not None:
        z = z.contiguous(memory_format=layout)  # kernels take it to lie as the result does
    call = functools.partial(cudnn_convolution_relu, image, weight, bias, z, *geometry)
    if layout is torch.channels_last and image.element_size() == 2 and (own := _own()) and own.fits(image, weight):
        result = _place(image, weight, *geometry)
        image, weight = (tensor.contiguous(memory_format=layout) for tensor in (image, weight))
        stride, padding, dilation, _ = geometry
        work = own.Convolution(image, weight, bias, z, result, (*stride, *padding, *dilation))
        if own.convolution_relu(work, call):
            return result
    return call()


def cudnn_convolution_relu(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    """The same by cuDNN's single operation for it, on a GPU. RuntimeError where it has none."""
    if z is None:
        return torch.cudnn_convolution_relu(image, weight, bias, *geometry)
    return torch.cudnn_convolution_add_relu(image, weight, z, 1.0, bias, *geometry)


@functools.cache
def _own() -> Any:
    """The module with our own kernel; None where it cannot be compiled."""
    if missing_compiler(torch.device("cuda")):
        return None
    # Imported here: it takes a second, which only who has such convolutions should wait.
    from multi_dnn_ros.backends import triton_convolution

    return triton_convolution


def _fake(
    image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, z: torch.Tensor | None, *geometry: Any
) -> torch.Tensor:
    return _place(image, weight, *geometry)


def _place(
    image: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """Memory for the result, which lies as cuDNN has it: as the images or the weights do."""
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
