"""Settings of processes that receive, decode or send images: memory, and how Python switches threads."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import locale
import math
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.common.errors import CommandError

if TYPE_CHECKING:
    import torch

#: Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: glibc's maximum on 64-bit systems; an image of 3840 x 2160 x 3 bytes is 25 MB.
_MMAP_THRESHOLD = 32 << 20
_TRIM_THRESHOLD = 128 << 20
#: Seconds. Python's default, 5 ms, is longer than a job. With the three small DNNs on two cores and a camera of
#: 1280x720 at 10 Hz, this reduces the end-to-end p95 by a twentieth; on a GPU eight VGG16 as one batch are 5 % faster.
_SWITCH_INTERVAL_S = 0.0005
#: With less, OpenBLAS ends the process when NumPy is imported.
_MIN_ADDRESS_SPACE_BYTES = 1 << 30


def configure_malloc() -> None:
    """Make malloc reuse image-sized blocks instead of returning each one to the system, where it is glibc's.

    By default glibc maps blocks above an adaptive threshold (128 kB to 32 MB) separately and returns free memory at the
    end of the heap. Each image then causes a page fault every 4 kB, which is half of the CPU time of receiving it. With
    these settings the process keeps at most 128 MB of free memory; see :func:`return_free_memory`.

    All threads share one arena. With an arena of its own, each thread would keep the memory of the images that it has
    freed, and the process would grow by an image now and then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl and macOS have none
    if mallopt is not None:  # both thresholds: setting either disables glibc's adaptation of the other
        settings = ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD), (_M_ARENA_MAX, 1))
        for setting in settings:
            mallopt(*setting)


def return_free_memory() -> None:
    """Return the free pages of the heap to the system, if the C library can. Takes milliseconds, during which no thread
    can allocate from the heap. Returned pages cause page faults when they are used again.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def return_free_memory_every(period_s: float) -> None:
    """Start a daemon thread that calls :func:`return_free_memory` after each period.

    For processes that run for hours. Freed image-sized blocks leave gaps between small blocks that stay allocated, so
    the heap grows by an image now and then although no more of it is in use.
    """

    def run() -> None:
        while True:
            time.sleep(period_s)
            return_free_memory()

    threading.Thread(target=run, name="free-memory", daemon=True).start()


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Context with a short thread switch interval for all threads of the process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def freeze_heap() -> None:
    """Exclude all current objects from garbage collection until :func:`release_memory`.

    A pipeline has several hundred thousand objects; traversing them would stop every thread for a quarter of a second
    at times.
    """
    gc.collect()
    gc.freeze()


def release_memory(device: torch.device) -> None:
    """Return freed memory to the system and to other processes on the GPU; allocators keep it otherwise."""
    import torch

    gc.unfreeze()
    gc.collect()  # traced graphs contain reference cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return_free_memory()


def check_process() -> None:
    """Raise CommandError for a locale, a current folder or a limit of the address space with which libraries fail, each
    with an error of its own.
    """
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") != "utf8":
        raise CommandError(
            f"the character set of the locale is {encoding}, so paths cannot be read reliably; allowed: UTF-8, for "
            "example LC_ALL=C.UTF-8"
        )
    try:
        Path.cwd()
    except FileNotFoundError:
        raise CommandError("the current folder has been deleted; change to another one with `cd`") from None
    if _address_space_bytes() < _MIN_ADDRESS_SPACE_BYTES:
        raise CommandError(with_memory_limit(""))


def with_memory_limit(text: str) -> str:
    """The text of an unexpected error, preceded by the limit of this process's address space if there is one: under
    such a limit libraries cannot be loaded, lack parts, or cannot start threads.
    """
    if math.isinf(_address_space_bytes()):
        return text
    return (
        f"the address space of this process is limited to {_address_space_bytes() / (1 << 20):.0f} MiB (ulimit -v), "
        "too little for the libraries; limit its memory with a control group instead, as systemd's MemoryMax does"
    ) + (f" ({text})" if text else "")


def _address_space_bytes() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)
