"""Checksum of a network, by which caches find what was made for it."""

from __future__ import annotations

import hashlib

import torch
from torch import fx, nn


def network_checksum(module: nn.Module) -> str:
    """Checksum of a network's structure and parameters, in hexadecimal digits."""
    digest = hashlib.sha256(repr(module).encode())
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            digest.update(part.code.encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
