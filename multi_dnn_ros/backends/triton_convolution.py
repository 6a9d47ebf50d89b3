"""A convolution, its bias, a tensor that is added and the ReLU behind as one kernel, written in Triton.

cuDNN's are made for more work than the layers of a few images are: they leave most of a large GPU idle, take several
times as long as the arithmetic for groups of channels, and a first layer's three channels fill their tiles to a fifth.
Here each group is a product of matrices (pixels by channels of the window, these by outputs), the left one of which is
gathered while it is computed. It is used where it is faster.
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
    """How the work is divided: what a block of threads computes, pixels by outputs, of how many channels of the window
    at a time; its warps, and how many loads it has under way; and between how many blocks the window is divided, whose
    sums a second kernel adds: where there are few pixels, more of the GPU is at work then."""

    pixels: int
    outputs: int
    channels: int
    warps: int = 4
    stages: int = 3
    parts: int = 1


#: The fastest is taken.
_OF_IMAGES = (Tile(128, 64, 32, stages=2), Tile(128, 32, 32, stages=2), Tile(32, 64, 32, stages=2))
_OF_MUCH_WORK = (Tile(128, 128, 64, warps=8), Tile(64, 128, 64, stages=4))
_OF_LITTLE_WORK = Tile(64, 64, 64, stages=4)
_OF_ENOUGH_WORK = (_OF_MUCH_WORK[0], Tile(64, 128, 64, stages=4, parts=3), _OF_LITTLE_WORK)
#: Of the little that is divided each part has so many steps of 64 channels, at least.
_STEPS_OF_A_PART = 4
#: Channels of what counts as a network's first layer, at most.
_FEW = 4
#: Sums that a block of threads adds up.
_AT_ONCE = 1024
_chosen: dict[tuple[Any, ...], Tile | None] = {}


def tiles(image: torch.Size, weight: torch.Size, result: torch.Size, processors: int) -> Sequence[Tile]:
    """Ways to divide the work of such a convolution that may be the fastest on a GPU of so many multiprocessors.

    Each is compiled for this convolution, a third of a second. None where cuDNN's have enough to do.
    """
    outputs, channels, *window = weight
    groups = image[1] // channels
    if channels <= _FEW:
        return _OF_IMAGES
    pixels = result[0] * result[2] * result[3]
    blocks = triton.cdiv(pixels, 64) * triton.cdiv(outputs // groups, 64) * groups
    if blocks >= 2 * processors:
        return _OF_MUCH_WORK if groups > 1 else ()
    if blocks >= processors * 3 // 4:
        return _OF_ENOUGH_WORK
    steps = math.prod(window) * triton.cdiv(channels, 64)
    parts = 8 if 8 * blocks <= processors and steps >= 8 * _STEPS_OF_A_PART else 4
    return (_OF_LITTLE_WORK._replace(parts=parts if steps >= parts * _STEPS_OF_A_PART else 1),)


def fits(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel is for such a convolution, of channels last: 16 bits, and enough channels, or an image's."""
    outputs, channels = weight.shape[:2]
    groups = image.shape[1] // channels
    few = groups == 1 and channels <= _FEW
    return (
        image.dtype in (torch.float16, torch.bfloat16)
        and (few or (channels >= 16 and channels % 8 == 0))  # of many, 16 bytes are read at once
        and outputs // groups >= 16
        # Places in memory are counted in 32 bits; padding may make the result a little larger than the image.
        and max(image.numel() // image.shape[1] * max(image.shape[1], outputs), weight.numel()) < 2**30
    )


class Convolution(NamedTuple):
    """relu(convolution of `image` + bias + z) into `result`; all images and the weights lie with channels last.

    geometry: stride, padding and dilation, down and across each.
    """

    image: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    z: torch.Tensor | None
    result: torch.Tensor
    geometry: Sequence[int]

    def launch(self, tile: Tile) -> None:
        """On the current stream, divided so."""
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
            _add_up[(triton.cdiv(count, _AT_ONCE),)](
                sums, bias, z, result, count, outputs, bias is not None, z is not None, tile.parts, _AT_ONCE
            )


def convolution_relu(work: Convolution, instead: Callable[[], object]) -> bool:
    """Do it, unless `instead`, which does the same, is faster: then nothing is done, and the answer is no.

    Called for the first time with such shapes, on so many multiprocessors, it tries all ways to divide the work, if the
    stream is not capturing. What is fastest on a whole GPU need not be on the share of it that a DNN runs on.
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
        tile = _chosen[key] = _fastest(work, choices, instead) if choices else None
    if tile is not None:
        work.launch(tile)
    return tile is not None


def _fastest(work: Convolution, choices: Sequence[Tile], instead: Callable[[], object]) -> Tile | None:
    times: dict[Tile | None, float] = {None: _ms(instead)}
    for tile in choices:
        times[tile] = _ms(functools.partial(work.launch, tile))
    return min(times, key=lambda tile: times[tile])


def _ms(call: Callable[[], object]) -> float:
    """Infinity where cuDNN has no such kernel, or the GPU too little memory for a block, say."""
    try:
        return gpu_ms(call)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, triton.TritonError) as error:
        log.debug("a kernel for a convolution cannot be used: %s", error)
        return math.inf


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # Triton looks up what annotations name, and knows no others
    image, weight, bias, z, result, sums, pixels,
    IN_H: tl.constexpr, IN_W: tl.constexpr, OUT_H: tl.constexpr, OUT_W: tl.constexpr,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, SPREAD_H: tl.constexpr, SPREAD_W: tl.constexpr,
    GROUPS: tl.constexpr, GROUP_IN: tl.constexpr, GROUP_OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """BLOCK_M pixels of BLOCK_N outputs of one group, BLOCK_K channels of the window at a time: of one place in it, or
    where a place has few, of several places.

    Shapes are constants: to compute places from numbers that are not takes half of the time again.
    """
    ALL_IN: tl.constexpr = GROUP_IN * GROUPS
    ALL_OUT: tl.constexpr = GROUP_OUT * GROUPS
    PLACES: tl.constexpr = WINDOW_H * WINDOW_W
    SEVERAL: tl.constexpr = GROUP_IN * 4 <= BLOCK_K  # places at a time
    BLOCKS: tl.constexpr = (GROUP_IN + BLOCK_K - 1) // BLOCK_K  # of a place
    STEPS: tl.constexpr = (PLACES * GROUP_IN + BLOCK_K - 1) // BLOCK_K if SEVERAL else PLACES * BLOCKS
    OF_A_PART: tl.constexpr = (STEPS + PARTS - 1) // PARTS
    group = tl.program_id(2) // PARTS
    part = tl.program_id(2) % PARTS
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    top = pixel // OUT_W % OUT_H * STEP_H - PAD_H
    left = pixel % OUT_W * STEP_W - PAD_W
    first = image + pixel // (OUT_W * OUT_H) * (IN_H * IN_W * ALL_IN) + group * GROUP_IN
    filters = weight + (group * GROUP_OUT + output) * (PLACES * GROUP_IN)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for number in range(OF_A_PART):  # one loop, so that its loads run ahead through all of it
        step = part * OF_A_PART + number
        if SEVERAL:
            along = step * BLOCK_K + tl.arange(0, BLOCK_K)
            place = along // GROUP_IN
            row = top[:, None] + (place // WINDOW_W * SPREAD_H)[None, :]
            column = left[:, None] + (place % WINDOW_W * SPREAD_W)[None, :]
            channel = along % GROUP_IN
            known = along < PLACES * GROUP_IN
        else:
            place = step // BLOCKS
            row = (top + place // WINDOW_W * SPREAD_H)[:, None]
            column = (left + place % WINDOW_W * SPREAD_W)[:, None]
            channel = step % BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
            along = place * GROUP_IN + channel
            known = (channel < GROUP_IN) & (place < PLACES)
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
        # Not tl.maximum, which takes 0 for what is no number: that must stay visible.
        total = tl.where(total < 0, 0.0, total)
        tl.store(result + results, total.to(result.dtype.element_ty), mask=wanted)


@triton.jit  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    sums, bias, z, result, count,
    OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_Z: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the parts of each sum make together, with bias, z and ReLU."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = place < count
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(PARTS):
        total += tl.load(sums + place, mask=known, other=0.0)
        sums += count
    if HAS_BIAS:
        total += tl.load(bias + place % OUTPUTS, mask=known, other=0.0).to(tl.float32)
    if HAS_Z:
        total += tl.load(z + place, mask=known, other=0.0).to(tl.float32)
    total = tl.where(total < 0, 0.0, total)
    tl.store(result + place, total.to(result.dtype.element_ty), mask=known)
