"""PyTorch's number of CPU threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context in which one CPU operation of PyTorch uses `count` threads; the former number is restored."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
