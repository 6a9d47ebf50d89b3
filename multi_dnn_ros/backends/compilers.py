"""Finds the compilers that generated kernels need."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def missing_compiler(device: torch.device) -> str:
    """What is missing to compile kernels for `device`, as the end of a sentence ("needs ..."); "" if nothing is."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which is not installed"
        if not any(shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name):
            return "needs a C compiler (gcc, clang or the variable CC), and none is found"
        return ""
    if not any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name):
        return "needs a C++ compiler (g++, clang++ or the variable CXX), and none is found"
    return ""
