"""TorchScript: a whole stage in one call without the GIL. For CPUs.

Eager PyTorch releases and reacquires the GIL in every operation, so that workers and decoders wait for one another
about a hundred times per frame. PyTorch has deprecated TorchScript but has no other way to run a graph without the GIL
(AOTInductor's Python runner holds it during the whole call).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import torch

from multi_dnn_ros.backends import Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.eager_fallback import compiled_or_eager
from multi_dnn_ros.backends.registry import BackendSpec

#: TorchScript profiles the first calls and then optimizes.
_WARM_UP_CALLS = 3


class TorchScript:
    """Runs each stage as a frozen script; a stage that cannot be traced, or whose results differ, stays eager.

    tolerance: largest error of a stage, relative to the scale of its results. dnn: its name, for the log.
    """

    def __init__(self, tolerance: float = 1e-4, dnn: str = "") -> None:
        self._tolerance = tolerance
        self._dnn = dnn or "the DNN"

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move to `device`, trace, compare with eager results on `inputs`, and warm up."""
        eager = Eager().prepare(stages, inputs, device)
        ready: list[Stage] = []
        with torch.inference_mode():
            carried = tuple(tensor.to(device) for tensor in inputs)
            for index, stage in enumerate(eager):
                expected = stage(carried)
                script = partial(_script, stage, carried, expected, self._tolerance)
                ready.append(compiled_or_eager(f"job {index + 1} of {self._dnn}", "TorchScript", script, stage))
                carried = expected
        return tuple(ready)


def _script(stage: Stage, carried: Tensors, expected: Tensors, tolerance: float) -> Stage:
    if not carried or not isinstance(stage, torch.nn.Module):
        raise ValueError("a stage without inputs cannot be traced")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation, and values fixed by tracing
        traced = torch.jit.trace(_Positional(stage).eval(), carried, check_trace=False)
        script = torch.jit.freeze(traced)

    def run(tensors: Tensors) -> Tensors:
        results: Tensors = script(*tensors)
        return results

    for _ in range(_WARM_UP_CALLS):
        results = run(carried)
    check_agreement(results, expected, tolerance)
    return run


class _Positional(torch.nn.Module):
    """A stage that takes its carried tensors as separate arguments, as tracing requires."""

    def __init__(self, stage: torch.nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, *carried: torch.Tensor) -> Tensors:
        results: Tensors = self.stage(carried)
        return results


SPEC = BackendSpec("torchscript", lambda request: TorchScript(request.tolerance, request.dnn))
