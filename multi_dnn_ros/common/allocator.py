"""Settings of the C library's memory allocator for processes that receive, decode or send images."""

from __future__ import annotations

import ctypes

#: Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest that glibc takes on a 64-bit system; an image of 3840 x 2160 x 3 bytes is 25 MB.
_MMAP_THRESHOLD = 32 << 20
_TRIM_THRESHOLD = 128 << 20


def configure_malloc() -> bool:
    """Let the allocator keep blocks as large as images for the next image, instead of returning each to the system.

    By default glibc gives blocks above a threshold (128 kB to 32 MB, it adapts) mappings of their own, and
    returns free memory at the end of the heap: each image then costs a page fault for every 4 kB, which is half of the
    CPU time of receiving it. The process keeps at most 128 MB more than it uses.
    False where the C library has no such settings (musl, macOS), or refuses them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Both: setting either one ends glibc's own adjustment of the other.
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD))
