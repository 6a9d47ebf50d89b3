"""Warns about modules of other packages that import PyTorch into the node's process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def warn_about_torch(importer: str, warn: Callable[[str], object]) -> Iterator[None]:
    """Call `warn` if PyTorch is imported in the block. importer: what is imported there, for the message.

    With `isolation: none` the process has imported PyTorch before, for the DNNs.
    """
    before = "torch" in sys.modules
    yield
    if "torch" in sys.modules and not before:
        warn(
            f"{importer} imports PyTorch into the node's process, which then needs several times as much memory. "
            "Result kinds, the classes of their results and the functions that make messages must be in modules that "
            "do not import PyTorch, nor may the __init__.py of their package (docs/extending.md)"
        )
