"""Mixed precision of training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def autocast(device: torch.device, precision: str, *, cache: bool = True) -> AbstractContextManager[Any]:
    """The forward pass in `precision` (fp32, bf16, fp16) on CUDA; elsewhere, and for fp32, nothing.

    cache: whether a weight that is used twice is cast once.
    """
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    enabled = precision != "fp32" and device.type == "cuda"
    return torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=cache)
