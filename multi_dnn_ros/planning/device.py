"""Measured limits of a device: arithmetic throughput and memory bandwidth, the two sides of its roofline.

Method: Williams, Waterman, Patterson, Roofline: An Insightful Visual Performance Model, CACM 52(4), 2009.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal

import psutil
import torch
from pydantic import Field, ValidationError
from torch.nn import functional

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.reporting import nvidia_smi_id
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.planning.clock import Clock, clock_for
from multi_dnn_ros.planning.file_model import FileModel
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

_FORMAT = "multi_dnn_ros devices 1"
_REPEATS = 7
#: (side of the matrices, (channels, side) of the 3x3 convolution, MiB copied)
_SIZES = {"cpu": (1024, (128, 56), 128), "cuda": (8192, (512, 112), 1024)}
#: Utilization by other processes above which a warning is given.
BUSY = 0.10


class DeviceLimits(FileModel):
    """Limits of one device at one precision and number of threads.

    flops_per_s: the faster of a matrix product and a 3x3 convolution. bytes_per_s: bytes read and written per second by
    a copy much larger than the caches.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    precision: str
    threads: int = Field(ge=1)
    flops_per_s: float = Field(gt=0.0)
    bytes_per_s: float = Field(gt=0.0)

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic is the limit instead of memory."""
        return self.flops_per_s / self.bytes_per_s

    def bound_ms(self, flops: float, moved: float) -> float:
        """Lower bound in milliseconds for `flops` operations and `moved` bytes of memory traffic."""
        return 1e3 * max(flops / self.flops_per_s, moved / self.bytes_per_s)


def device_name(target: Target) -> str:
    """Device, threads and precision, without the software versions."""
    device, precision, _, _ = target.name().split("; ")
    return f"{device}; {precision}"


def measure_limits(
    target: Target,
    clock: Clock | None = None,
    scale: float = 1.0,
    hold: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> DeviceLimits:
    """Measure the target's device, which takes a second or two.

    scale: factor on the problem sizes, for tests. hold: returns a context manager entered around each call.
    """
    device, dtype = target.device, target.dtype
    side, (channels, pixels), mebibytes = _SIZES[device.type]
    side, pixels = max(8, int(side * scale)), max(8, int(pixels * scale))
    clock = clock or clock_for(device)
    with torch.inference_mode():
        a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
        image = torch.rand(1, channels, pixels, pixels, device=device).to(dtype)
        weight = torch.rand(channels, channels, 3, 3, device=device).to(dtype)
        source = torch.ones(max(1, int(mebibytes * scale * scale)) << 18, device=device)
        destination = torch.empty_like(source)
        product_s = fastest_s(lambda: torch.mm(a, b), clock, hold)
        convolution_s = fastest_s(lambda: functional.conv2d(image, weight, padding=1), clock, hold)
        copy_s = fastest_s(lambda: destination.copy_(source), clock, hold)
    return DeviceLimits(
        name=device_name(target),
        kind="cuda" if device.type == "cuda" else "cpu",
        precision=target.precision,
        threads=torch.get_num_threads(),
        flops_per_s=max(2.0 * side**3 / product_s, 2.0 * 9 * channels**2 * pixels**2 / convolution_s),
        bytes_per_s=2.0 * source.numel() * 4 / copy_s,
    )


def limits_of(
    target: Target, path: Path | None, *, keep: bool = True, measure: Callable[[Target], DeviceLimits] = measure_limits
) -> DeviceLimits:
    """Read the device's limits from the file at `path`, or measure them and, with `keep`, write them there.

    keep: False while the device is busy, because measured limits are then too low. A file that is invalid, or cannot be
    read or written, is logged and ignored. If `path` is None, nothing is stored.
    """
    known = _read(path) if path is not None and path.exists() else {}
    key = f"{device_name(target)}; torch {torch.__version__}"
    if key in known:
        return known[key]
    known[key] = measure(target)
    if path is not None and keep:
        _write(path, known)
    return known[key]


def default_path() -> Path:
    """Default file for device limits."""
    return cache_folder() / "devices.json"


def foreign_load(device: torch.device, seconds: float = 0.3) -> float | None:
    """Share of the device (0 to 1) that other processes use now; None if unknown.

    A CPU is observed for `seconds`, during which this process should be idle.
    """
    if device.type == "cpu":
        return _foreign_cpu(seconds)
    try:
        done = subprocess.run(
            [
                "nvidia-smi",
                f"--id={nvidia_smi_id(device.index or 0)}",
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
            ],
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        )
        return float(done.stdout.strip()) / 100.0
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def busy_warning(device: torch.device, load: Callable[[torch.device], float | None] = foreign_load) -> str:
    """Warning text if other processes use the device; "" if they do not, or if that is unknown."""
    used = load(device)
    if used is None or used <= BUSY:
        return ""
    return f"{device} is busy: other processes use {used:.0%} of it, so measured times are too long"


def _foreign_cpu(seconds: float) -> float:
    process = psutil.Process()
    before, own_before, begin = psutil.cpu_times(), process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, own_after, elapsed = psutil.cpu_times(), process.cpu_times(), time.monotonic() - begin
    idle = (after.idle - before.idle) + (getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0))
    cores = psutil.cpu_count() or 1
    own_s = (own_after.user + own_after.system) - (own_before.user + own_before.system)
    return max(0.0, min(1.0, (elapsed * cores - idle - own_s) / (elapsed * cores)))


def fastest_s(
    work: Callable[[], object], clock: Clock, hold: Callable[[], AbstractContextManager[None]] = nullcontext
) -> float:
    """Seconds of the fastest of several calls of `work`. hold: as in :func:`measure_limits`."""
    work()
    clock.prepare(2)
    best = float("inf")
    for _ in range(_REPEATS):
        with hold():
            clock.mark(0)
            work()
            clock.mark(1)
            (ms,) = clock.gaps_ms()
        best = min(best, ms / 1e3)
    return max(best, 1e-9)


def _read(path: Path) -> dict[str, DeviceLimits]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("not a file of device limits")
        return {str(key): DeviceLimits.model_validate(value) for key, value in content["devices"].items()}
    except (OSError, ValueError, ValidationError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("device limits in %s are not used: %s", path, summarize_error(error))
        return {}


def _write(path: Path, known: dict[str, DeviceLimits]) -> None:
    devices = {key: limits.model_dump() for key, limits in known.items()}
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps({"format": _FORMAT, "devices": devices}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("device limits are not cached: %s cannot be written: %s", path, error)
