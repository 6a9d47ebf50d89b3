"""Checks what the backend of another package does while it prepares a DNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extension_calls import extension_errors, returned_text
from multi_dnn_ros.common.extensions import ExtensionError


class CheckedBackend:
    """Another package's backend, whose errors name it and the DNN. Runs the prepared callables once, on zeros.

    name: of the backend. dnn: name of the DNN.
    """

    def __init__(self, backend: Backend, name: str, dnn: str) -> None:
        self._backend = backend
        self._name = name
        self._where = f"dnn.{dnn}: " if dnn else ""

    def prepare(
        self, stages: Sequence[torch.nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> tuple[Stage, ...]:
        """As :meth:`Backend.prepare`. Raises ExtensionError for whatever the backend raises, and for a wrong number of
        callables or one that does not return a tuple of tensors.
        """
        jobs = len(stages)
        with extension_errors(extensions.BACKENDS, self._name, "prepare", where=self._where):
            ready: Any = self._backend.prepare(stages, inputs, device, shared)
        if not isinstance(ready, (tuple, list)) or not all(map(callable, ready)):
            raise self._error("prepare", ready, f"a tuple of {jobs} callables, one for each job")
        if len(ready) != jobs:
            backend = extensions.display_name(extensions.BACKENDS, self._name)
            raise ExtensionError(f"{self._where}{backend}: prepare returned {len(ready)} callables for {jobs} jobs")
        self._run(ready, inputs, device)
        return tuple(ready)

    def _run(self, stages: Sequence[Stage], inputs: Tensors, device: torch.device) -> None:
        with torch.inference_mode():
            carried: Any = tuple(torch.zeros_like(tensor, device=device) for tensor in inputs)
            for number, stage in enumerate(stages, start=1):
                function = f"the callable for job {number}"
                with extension_errors(extensions.BACKENDS, self._name, function, where=self._where):
                    carried = stage(carried)
                if not isinstance(carried, tuple) or not all(isinstance(each, torch.Tensor) for each in carried):
                    raise self._error(function, carried, "a tuple of tensors")

    def _error(self, function: str, value: object, expected: str) -> ExtensionError:
        return ExtensionError(self._where + returned_text(extensions.BACKENDS, self._name, function, value, expected))
