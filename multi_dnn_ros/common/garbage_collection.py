"""Pause Python's garbage collection."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Context without garbage collection. Affects the whole process, so contexts of several threads must not overlap.

    For a capture: destroying a collected CUDA graph would abort it. For imports and exports: they create up to millions
    of objects that remain, and traversing these repeatedly takes a tenth to a fifth of their time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
