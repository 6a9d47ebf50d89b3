"""Mixed precision for training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Context for a forward pass in `precision` (fp32, bf16, fp16) on CUDA; no effect on other devices and for fp32."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    enabled = precision != "fp32" and device.type == "cuda"
    return torch.autocast(device.type, dtype=dtype, enabled=enabled)
