"""Memory use of a process with an engine."""

from __future__ import annotations

import psutil
import torch


def memory_use(device: torch.device) -> dict[str, int]:
    """Bytes by name, for diagnostics: resident memory, and on a GPU what PyTorch has allocated and reserved there."""
    values = {"resident memory (bytes)": psutil.Process().memory_info().rss}
    if device.type == "cuda":
        values["GPU allocated (bytes)"] = torch.cuda.memory_allocated(device)
        values["GPU reserved (bytes)"] = torch.cuda.memory_reserved(device)
    return values
