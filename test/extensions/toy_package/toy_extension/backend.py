"""The backend: eager, and it says so."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec


class ToyBackend:
    def __init__(self, request: BackendRequest) -> None:
        self._request = request

    def prepare(
        self, stages: Sequence[torch.nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> tuple[Stage, ...]:
        self._request.progress(f"toy backend prepares {len(stages)} jobs of {self._request.dnn} on {device}")
        return Eager().prepare(stages, inputs, device, shared)


def _make(request: BackendRequest) -> Backend:
    return ToyBackend(request)


SPEC = BackendSpec("toy_backend", _make, precisions={"cpu": ("auto", "fp32")})
