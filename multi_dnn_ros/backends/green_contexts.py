"""Whether PyTorch can give a thread a share of a GPU's SMs: CUDA's green contexts."""

from __future__ import annotations


def supported() -> bool:
    """From PyTorch 2.11 on, built for CUDA 12.8 or newer."""
    try:
        from torch.cuda import green_contexts
    except ImportError:
        return False
    return bool(getattr(green_contexts, "SUPPORTED", False))
