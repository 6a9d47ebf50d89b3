"""A convolution in groups, its bias, a tensor that is added and the ReLU behind as one kernel, written in Triton.

cuDNN has no fast kernel for groups of many channels: it takes 40 us for a layer of RegNetY-32GF and two images, where 5
would do for the arithmetic. Each group is a product of matrices (pixels by channels of the window, these by outputs),
the left one of which is gathered while it is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from multi_dnn_ros.backends.gpu_time import gpu_ms

#: What a block of threads computes, pixels and outputs, and how many loads it has under way; the fastest is taken.
_TILES = ((64, 64, 4), (64, 128, 3), (128, 64, 3), (32, 64, 4))
_CHANNELS = 64  # at once, at most
_chosen: dict[tuple[Any, ...], tuple[int, int, int]] = {}


def fits(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel is for such a convolution, of channels last: 16 bits, and enough channels in each group."""
    outputs, channels = weight.shape[:2]
    groups = image.shape[1] // channels
    return (
        image.dtype in (torch.float16, torch.bfloat16)
        and channels % 8 == 0
        and min(channels, outputs // groups) >= 16
        # Places in memory are counted in 32 bits; padding may make the result a little larger than the image.
        and max(image.numel() // image.shape[1] * max(image.shape[1], outputs), weight.numel()) < 2**30
    )


def convolution_relu(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None,
    result: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    """relu(convolution + bias + z) into `result`; all images and the weights lie with channels last.

    Called for the first time with such shapes it tries its ways to divide the work, if the stream is not capturing.
    """
    shapes = (tuple(image.shape), tuple(weight.shape), tuple(stride), tuple(padding), tuple(dilation))
    key = (*shapes, image.dtype, image.device)
    tile = _chosen.get(key)
    launch = functools.partial(_launch, image, weight, bias, z, result, (*stride, *padding, *dilation))
    if tile is None:
        if not image.is_cuda or torch.cuda.is_current_stream_capturing():
            tile = _TILES[0]
        else:
            tile = _chosen[key] = min(_TILES, key=lambda tile: gpu_ms(functools.partial(launch, tile)))
    launch(tile)


def _launch(
    image: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None,
    result: torch.Tensor,
    geometry: tuple[int, ...],
    tile: tuple[int, int, int],
) -> None:
    images, all_channels, *sides = image.shape
    outputs, channels, *window = weight.shape
    groups = all_channels // channels
    pixels = images * result.shape[2] * result.shape[3]
    block_m, block_n, stages = tile
    grid = (triton.cdiv(pixels, block_m), triton.cdiv(outputs // groups, block_n), groups)
    _kernel[grid](
        image, weight, bias, z, result, pixels,
        *sides, *result.shape[2:], all_channels, outputs, channels, outputs // groups, *window, *geometry,
        bias is not None, z is not None,
        block_m, block_n, min(_CHANNELS, triton.next_power_of_2(channels)),
        num_warps=4, num_stages=stages,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # Triton looks up what annotations name, and knows no others
    image, weight, bias, z, result, pixels,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    ALL_IN: tl.constexpr, ALL_OUT: tl.constexpr, GROUP_IN: tl.constexpr, GROUP_OUT: tl.constexpr,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, SPREAD_H: tl.constexpr, SPREAD_W: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_M pixels of BLOCK_N outputs of one group: over all places of the window, BLOCK_K channels at a time."""
    group = tl.program_id(2)
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    top = pixel // OUT_W % OUT_H * STEP_H - PAD_H
    left = pixel % OUT_W * STEP_W - PAD_W
    first = image + pixel // (OUT_W * OUT_H) * (IN_H * IN_W * ALL_IN) + group * GROUP_IN
    filters = weight + (group * GROUP_OUT + output) * (WINDOW_H * WINDOW_W * GROUP_IN)
    blocks: tl.constexpr = (GROUP_IN + BLOCK_K - 1) // BLOCK_K
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(WINDOW_H * WINDOW_W * blocks):  # one loop, so that its loads run ahead through all of it
        place = step // blocks
        channel = step % blocks * BLOCK_K + tl.arange(0, BLOCK_K)
        row = top + place // WINDOW_W * SPREAD_H
        column = left + place % WINDOW_W * SPREAD_W
        inside = (pixel < pixels) & (row >= 0) & (row < IN_H) & (column >= 0) & (column < IN_W)
        left_hand = tl.load(
            first[:, None] + ((row * IN_W + column) * ALL_IN)[:, None] + channel[None, :],
            mask=inside[:, None] & (channel < GROUP_IN)[None, :],
            other=0.0,
        )
        right_hand = tl.load(
            filters[None, :] + place * GROUP_IN + channel[:, None],
            mask=(output < GROUP_OUT)[None, :] & (channel < GROUP_IN)[:, None],
            other=0.0,
        )
        total = tl.dot(left_hand, right_hand, total)
    if HAS_BIAS:
        total += tl.load(bias + group * GROUP_OUT + output, mask=output < GROUP_OUT, other=0.0).to(tl.float32)[None, :]
    places = pixel[:, None] * ALL_OUT + group * GROUP_OUT + output[None, :]
    known = (pixel < pixels)[:, None] & (output < GROUP_OUT)[None, :]
    if HAS_Z:
        total += tl.load(z + places, mask=known, other=0.0).to(tl.float32)
    # Not tl.maximum, which takes 0 for what is no number: that must stay visible.
    total = tl.where(total < 0, 0.0, total)
    tl.store(result + places, total.to(result.dtype.element_ty), mask=known)
