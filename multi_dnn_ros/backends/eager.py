"""Plain PyTorch: one call per layer. For CPUs, for debugging, and where a compiler fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from multi_dnn_ros.backends import Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.registry import BackendSpec
from multi_dnn_ros.common.errors import summarize_error

log = logging.getLogger(__name__)

T = TypeVar("T")


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


def compiled_or_eager(name: str, compiler: str, compile_part: Callable[[], T], eager: T) -> T:
    """The result of `compile_part`, or `eager`, with a warning, if it raises an exception.

    name, compiler: of the part and of the compiler, for the warning. Raises what `compile_part` raises if the memory of
    the device does not suffice, because the eager part would not fit either.
    """
    try:
        return compile_part()
    except Exception as error:  # whatever a compiler raises
        if is_out_of_memory(error):
            raise
        log.warning("%s runs eager, because %s fails: %s", name, compiler, summarize_error(error))
        return eager


SPEC = BackendSpec("eager", lambda request: Eager())
