"""Heap and GPU memory before and after serving."""

from __future__ import annotations

import ctypes
import gc

import torch


def freeze_heap() -> None:
    """Exclude all current objects from garbage collection until :func:`release_memory`.

    A pipeline has several hundred thousand objects; traversing them would stop every thread for a quarter of a second
    at times.
    """
    gc.collect()
    gc.freeze()


def release_memory(device: torch.device) -> None:
    """Return freed memory to the system and to other processes on the GPU; allocators keep it otherwise."""
    gc.unfreeze()
    gc.collect()  # traced graphs contain reference cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
