"""Whether the weights and statistics of a network are numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def non_finite_tensor(state: Mapping[str, Tensor]) -> str | None:
    """Name of the first floating-point tensor of a state dict with an infinite value or NaN; None: there is none.

    Besides weights these can be the statistics of batch normalization, which do not affect the loss of training: its
    normalization uses those of the batch.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
