"""Measured limits of a device: arithmetic throughput and memory bandwidth, the two sides of its roofline.

Method: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from multi_dnn_ros.planning.clock import timed_ms
from multi_dnn_ros.planning.timing import Target

_REPEATS = 7
#: (side of the matrices, (channels, side) of the 3x3 convolution, MiB copied)
_SIZES = {"cpu": (1024, (128, 56), 128), "cuda": (8192, (512, 112), 1024)}


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of one device at one precision and number of threads, which are part of its name.

    flops_per_s: the faster of a matrix product and a 3x3 convolution. bytes_per_s: bytes read and written per second by
    a copy much larger than the caches.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic is the limit instead of memory."""
        return self.flops_per_s / self.bytes_per_s

    def bound_ms(self, flops: float, moved: float) -> float:
        """Lower bound in milliseconds for `flops` operations and `moved` bytes of memory traffic."""
        return 1e3 * max(flops / self.flops_per_s, moved / self.bytes_per_s)

    def text(self) -> str:
        """One line: device, both limits, and the ridge."""
        return (
            f"{self.name}: {self.flops_per_s / 1e9:.1f} GFLOP/s, {self.bytes_per_s / 1e9:.1f} GB/s; arithmetic is the "
            f"limit above {self.ridge:.1f} operations per byte"
        )


def measure_limits(target: Target, scale: float = 1.0) -> DeviceLimits:
    """Measure the target's device, which takes a second or two. scale: factor on the problem sizes, for tests."""
    device, dtype = target.device, target.dtype
    side, (channels, pixels), mebibytes = _SIZES[device.type]
    side, pixels = max(8, int(side * scale)), max(8, int(pixels * scale))
    with torch.inference_mode():
        a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
        image = torch.rand(1, channels, pixels, pixels, device=device).to(dtype)
        weight = torch.rand(channels, channels, 3, 3, device=device).to(dtype)
        source = torch.ones(max(1, int(mebibytes * scale * scale)) << 18, device=device)
        destination = torch.empty_like(source)
        product_s = fastest_s(lambda: torch.mm(a, b), device)
        convolution_s = fastest_s(lambda: functional.conv2d(image, weight, padding=1), device)
        copy_s = fastest_s(lambda: destination.copy_(source), device)
    return DeviceLimits(
        name=target.device_name,
        flops_per_s=max(2.0 * side**3 / product_s, 2.0 * 9 * channels**2 * pixels**2 / convolution_s),
        bytes_per_s=2.0 * source.numel() * 4 / copy_s,
    )


def fastest_s(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several calls of `work`."""
    work()
    return max(min(timed_ms([work] * _REPEATS, device)) / 1e3, 1e-9)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let each CPU operation of PyTorch use `count` threads inside the block; restore the former number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
