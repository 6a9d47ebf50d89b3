"""Memory around serving: settled once a pipeline stands, given back when it is gone, left alone meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

import torch


def freeze_heap() -> None:
    """Take what is there now out of garbage collection until memory is given back.

    With a pipeline it is several hundred thousand objects: going through them would hold up every thread for a quarter
    of a second, now and then.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """A block in which no garbage is collected: CUDA graphs among it would be destroyed, which breaks off a capture.

    It holds for the whole process, so blocks of several threads must not overlap.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def release_memory(device: torch.device) -> None:
    """Return what was freed to the system and to other processes on the GPU; allocators keep it otherwise."""
    gc.unfreeze()
    gc.collect()  # traced graphs refer to themselves
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
