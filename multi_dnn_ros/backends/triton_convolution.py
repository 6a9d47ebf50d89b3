"""Convolution, bias, residual addition and ReLU as one kernel, written in Triton.

cuDNN's kernels are made for more work than the layers of a few images have. They leave most of a large GPU idle, take
several times as long as the arithmetic for grouped convolutions, and fill a fifth of their tiles in a first layer with
three channels. This kernel is an implicit matrix product per group (pixels x window channels times window channels x
outputs). It is used where it is faster.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.green_contexts import current_sms

log = logging.getLogger(__name__)


class Tile(NamedTuple):
    """How the work is divided among thread blocks.

    pixels, outputs: those of the result that a block computes. channels: channels of the window per step. warps: warps
    per block. stages: pipelined loads. parts: number of blocks that share a window (split-K), which uses more of the
    GPU if there are few pixels; a second kernel adds their sums.
    """

    pixels: int
    outputs: int
    channels: int
    warps: int = 4
    stages: int = 3
    parts: int = 1


#: Candidates, of which the fastest is used, by amount of work.
_FIRST_LAYER_TILES = (Tile(128, 64, 32, stages=2), Tile(128, 32, 32, stages=2), Tile(32, 64, 32, stages=2))
_LARGE_TILES = (Tile(128, 128, 64, warps=8), Tile(64, 128, 64, stages=4))
_SMALL_TILE = Tile(64, 64, 64, stages=4)
_MEDIUM_TILES = (_LARGE_TILES[0], Tile(64, 128, 64, stages=4, parts=3), _SMALL_TILE)
#: Minimum number of steps (of 64 channels) per part when a window is divided.
_MIN_STEPS_PER_PART = 4
#: Maximum number of input channels of a network's first layer.
_FIRST_LAYER_CHANNELS = 4
#: Results per block of the second kernel.
_SUMS_PER_BLOCK = 1024
_chosen: dict[tuple[Any, ...], Tile | None] = {}


def tiles(image: torch.Size, weight: torch.Size, result: torch.Size, processors: int) -> Sequence[Tile]:
    """Tiles that may be the fastest for a convolution of these shapes on a GPU with `processors` SMs.

    Compiling the kernel for a tile takes a third of a second. Empty if there is enough work for cuDNN's kernels.
    """
    outputs, channels, *window = weight
    groups = image[1] // channels
    if channels <= _FIRST_LAYER_CHANNELS:
        return _FIRST_LAYER_TILES
    pixels = result[0] * result[2] * result[3]
    blocks = triton.cdiv(pixels, 64) * triton.cdiv(outputs // groups, 64) * groups
    if blocks >= 2 * processors:
        return _LARGE_TILES if groups > 1 else ()
    if blocks >= processors * 3 // 4:
        return _MEDIUM_TILES
    steps = math.prod(window) * triton.cdiv(channels, 64)
    parts = 8 if 8 * blocks <= processors and steps >= 8 * _MIN_STEPS_PER_PART else 4
    return (_SMALL_TILE._replace(parts=parts if steps >= parts * _MIN_STEPS_PER_PART else 1),)


def fits(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel supports the convolution: 16-bit, with enough channels or with those of an image."""
    outputs, channels = weight.shape[:2]
    groups = image.shape[1] // channels
    few = groups == 1 and channels <= _FIRST_LAYER_CHANNELS
    return (
        image.dtype in (torch.float16, torch.bfloat16)
        and (few or (channels >= 16 and channels % 8 == 0))  # 16-byte loads
        and outputs // groups >= 16
        # Offsets are 32-bit; padding can make the result slightly larger than the image.
        and max(image.numel() // image.shape[1] * max(image.shape[1], outputs), weight.numel()) < 2**30
    )


class Convolution(NamedTuple):
    """relu(convolution(image) + bias + z), written to `result`; images and weights are channels_last.

    geometry: stride, padding and dilation, each vertical and horizontal.
    """

    image: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    z: torch.Tensor | None
    result: torch.Tensor
    geometry: Sequence[int]

    def launch(self, tile: Tile) -> None:
        """Launch on the current stream with this tile."""
        image, weight, bias, z, result, geometry = self
        images, all_channels, *sides = image.shape
        outputs, channels, *window = weight.shape
        groups = all_channels // channels
        pixels = images * result.shape[2] * result.shape[3]
        grid = (triton.cdiv(pixels, tile.pixels), triton.cdiv(outputs // groups, tile.outputs), groups * tile.parts)
        sums = None
        if tile.parts > 1:
            sums = torch.empty((tile.parts, pixels, outputs), dtype=torch.float32, device=image.device)
        _kernel[grid](
            image, weight, bias, z, result, sums, pixels,
            *sides, *result.shape[2:], *window, *geometry, groups, channels, outputs // groups,
            bias is not None, z is not None, *tile[:3], tile.parts, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if sums is not None:
            count = pixels * outputs
            _add_up[(triton.cdiv(count, _SUMS_PER_BLOCK),)](
                sums, bias, z, result, count, outputs, bias is not None, z is not None, tile.parts, _SUMS_PER_BLOCK
            )


def convolution_relu(work: Convolution, alternative: Callable[[], object]) -> bool:
    """Run the kernel and return True; return False without running it if `alternative`, which does the same, is faster.

    The first call for given shapes and number of SMs times all tiles, unless the stream is capturing. The fastest tile
    on a whole GPU need not be the fastest on a share of its SMs.
    """
    image, weight, result = work.image, work.weight, work.result
    processors = current_sms(image.device)
    shapes = tuple(image.shape), tuple(weight.shape)
    key = (*shapes, *work.geometry, work.z is None, image.dtype, image.device, processors)
    if key in _chosen:
        tile = _chosen[key]
    elif torch.cuda.is_current_stream_capturing():
        tile = None
    else:
        choices = tiles(image.shape, weight.shape, result.shape, processors)
        tile = _chosen[key] = _fastest(work, choices, alternative) if choices else None
    if tile is not None:
        work.launch(tile)
    return tile is not None


def _fastest(work: Convolution, choices: Sequence[Tile], alternative: Callable[[], object]) -> Tile | None:
    times: dict[Tile | None, float] = {None: _ms(alternative)}
    for tile in choices:
        times[tile] = _ms(functools.partial(work.launch, tile))
    return min(times, key=lambda tile: times[tile])


def _ms(call: Callable[[], object]) -> float:
    """GPU time; infinity if the call fails because cuDNN has no kernel, or a block needs too much memory."""
    try:
        return gpu_ms(call)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, triton.TritonError) as error:
        log.debug("a convolution kernel fails and is not used: %s", error)
        return math.inf


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # Triton evaluates annotations and knows only its own types
    image, weight, bias, z, result, sums, pixels,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, SPREAD_H: tl.constexpr, SPREAD_W: tl.constexpr,
    GROUPS: tl.constexpr, GROUP_IN: tl.constexpr, GROUP_OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M pixels of BLOCK_N outputs of one group. Each step reads BLOCK_K channels of the window, from one
    position in the window or, if a position has few channels, from several.

    Shapes are compile-time constants: computing offsets from variables makes the kernel 1.5 times as slow.
    """
    ALL_IN: tl.constexpr = GROUP_IN * GROUPS
    ALL_OUT: tl.constexpr = GROUP_OUT * GROUPS
    POSITIONS: tl.constexpr = WINDOW_H * WINDOW_W
    SEVERAL: tl.constexpr = GROUP_IN * 4 <= BLOCK_K  # several positions per step
    BLOCKS: tl.constexpr = (GROUP_IN + BLOCK_K - 1) // BLOCK_K  # steps per position
    STEPS: tl.constexpr = (POSITIONS * GROUP_IN + BLOCK_K - 1) // BLOCK_K if SEVERAL else POSITIONS * BLOCKS
    STEPS_PER_PART: tl.constexpr = (STEPS + PARTS - 1) // PARTS
    group = tl.program_id(2) // PARTS
    part = tl.program_id(2) % PARTS
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    top = pixel // OUT_W % OUT_H * STEP_H - PAD_H
    left = pixel % OUT_W * STEP_W - PAD_W
    first = image + pixel // (OUT_W * OUT_H) * (IN_H * IN_W * ALL_IN) + group * GROUP_IN
    filters = weight + (group * GROUP_OUT + output) * (POSITIONS * GROUP_IN)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for number in range(STEPS_PER_PART):  # a single loop, so that loads are pipelined over all steps
        step = part * STEPS_PER_PART + number
        if SEVERAL:
            along = step * BLOCK_K + tl.arange(0, BLOCK_K)
            position = along // GROUP_IN
            row = top[:, None] + (position // WINDOW_W * SPREAD_H)[None, :]
            column = left[:, None] + (position % WINDOW_W * SPREAD_W)[None, :]
            channel = along % GROUP_IN
            known = along < POSITIONS * GROUP_IN
        else:
            position = step // BLOCKS
            row = (top + position // WINDOW_W * SPREAD_H)[:, None]
            column = (left + position % WINDOW_W * SPREAD_W)[:, None]
            channel = step % BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
            along = position * GROUP_IN + channel
            known = (channel < GROUP_IN) & (position < POSITIONS)
        inside = (pixel < pixels)[:, None] & (row >= 0) & (row < IN_H) & (column >= 0) & (column < IN_W)
        left_hand = tl.load(
            first[:, None] + (row * IN_W + column) * ALL_IN + channel[None, :], mask=inside & known[None, :], other=0.0
        )
        right_hand = tl.load(
            filters[None, :] + along[:, None], mask=(output < GROUP_OUT)[None, :] & known[:, None], other=0.0
        )
        total = tl.dot(left_hand, right_hand, total)
    results = pixel[:, None] * ALL_OUT + group * GROUP_OUT + output[None, :]
    wanted = (pixel < pixels)[:, None] & (output < GROUP_OUT)[None, :]
    if PARTS > 1:
        tl.store(sums + part.to(tl.int64) * pixels * ALL_OUT + results, total, mask=wanted)
    else:
        if HAS_BIAS:
            added = tl.load(bias + group * GROUP_OUT + output, mask=output < GROUP_OUT, other=0.0)
            total += added.to(tl.float32)[None, :]
        if HAS_Z:
            total += tl.load(z + results, mask=wanted, other=0.0).to(tl.float32)
        # Not tl.maximum, which turns NaN into 0: NaN must stay visible.
        total = tl.where(total < 0, 0.0, total)
        tl.store(result + results, total.to(result.dtype.element_ty), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    sums, bias, z, result, count,
    OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the parts of each sum, bias and z; apply ReLU."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = position < count
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(PARTS):
        total += tl.load(sums + position, mask=known, other=0.0)
        sums += count
    if HAS_BIAS:
        total += tl.load(bias + position % OUTPUTS, mask=known, other=0.0).to(tl.float32)
    if HAS_Z:
        total += tl.load(z + position, mask=known, other=0.0).to(tl.float32)
    total = tl.where(total < 0, 0.0, total)
    tl.store(result + position, total.to(result.dtype.element_ty), mask=known)
