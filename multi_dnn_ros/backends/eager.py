"""Plain PyTorch: one call per layer. For CPUs and for debugging."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multi_dnn_ros.backends import Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.registry import BackendSpec


class Eager:
    """Runs each stage as an ordinary PyTorch module."""

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move to `device` and warm up. cuDNN chooses its algorithms in two calls, a CPU's library in one."""
        ready = tuple(stage.to(device).eval() for stage in stages)
        with torch.inference_mode():
            for _ in range(2 if device.type == "cuda" else 1):
                run_stages(ready, tuple(tensor.to(device) for tensor in inputs))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return ready


SPEC = BackendSpec("eager", lambda request: Eager())
