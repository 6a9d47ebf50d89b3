"""A network that several units compute, as a module for scoring."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from multi_dnn_ros.partition.session import BatchSession


class UnitNetwork(nn.Module):
    """forward(images (B, 3, h, w) float32) -> raw outputs of B images: one tensor if the network returns one, otherwise
    a tuple of its tensors in the order of tuples and dicts. B: up to the session's batch.

    seconds, images: time and images computed so far, for the rate. failures: see BatchSession.
    """

    def __init__(self, session: BatchSession) -> None:
        super().__init__()
        self.seconds = 0.0
        self.images = 0
        self.failures = session.failures
        self._session = session
        # Scoring uses the device of the first parameter.
        self.device_marker = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        began = time.monotonic()
        outputs = tuple(torch.from_numpy(output).float() for output in self._session.run(images.detach().numpy()))
        self.seconds += time.monotonic() - began
        self.images += len(images)
        return outputs[0] if len(outputs) == 1 else outputs
