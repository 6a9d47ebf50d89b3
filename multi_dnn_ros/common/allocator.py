"""malloc settings for processes that receive, decode or send images."""

from __future__ import annotations

import ctypes
import threading
import time

#: Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: glibc's maximum on 64-bit systems; an image of 3840 x 2160 x 3 bytes is 25 MB.
_MMAP_THRESHOLD = 32 << 20
_TRIM_THRESHOLD = 128 << 20


def configure_malloc() -> bool:
    """Make malloc reuse image-sized blocks instead of returning each one to the system.

    By default glibc maps blocks above an adaptive threshold (128 kB to 32 MB) separately and returns free memory at the
    end of the heap. Each image then causes a page fault every 4 kB, which is half of the CPU time of receiving it. With
    these settings the process keeps at most 128 MB of free memory; see :func:`return_free_memory`.

    All threads share one arena. With an arena of its own, each thread would keep the memory of the images that it has
    freed, and the process would grow by an image now and then.

    Returns False if the C library has no such settings (musl, macOS) or rejects them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Set both thresholds: setting either disables glibc's adaptation of the other.
    settings = ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD), (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD), (_M_ARENA_MAX, 1))
    return all(mallopt(*setting) for setting in settings)


def return_free_memory() -> bool:
    """Return the free pages of the heap to the system. Returns False if the C library cannot, or if none were free.

    Takes milliseconds, during which no thread can allocate from the heap. Returned pages cause page faults when they
    are used again.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))


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
