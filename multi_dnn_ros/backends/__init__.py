"""How one job runs on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Tensors = tuple[torch.Tensor, ...]
Stage = Callable[[Tensors], Tensors]


class Backend(Protocol):
    """Makes the stages of a DNN ready for a device, once, before the first frame."""

    def prepare(self, stages: Sequence[torch.nn.Module], inputs: Tensors, device: torch.device) -> tuple[Stage, ...]:
        """Move, compile and warm up. `inputs`: example inputs of the first stage, any device.

        The returned stages compute on the calling thread's current stream.
        """
        ...
