"""Checks what an executor returns: it may be one of another package."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from multi_dnn_ros.partition.executor import Array, Executor, OutputForm, RunTimes, image_dtype


class ExecutorError(ValueError):
    """An executor returned something that :class:`multi_dnn_ros.partition.executor.Executor` does not allow; the
    message says what, and what is allowed.
    """


class CheckedExecutor:
    """The executor `executor`, with the same interface.

    Creating it and its methods raise ExecutorError for an invalid attribute or result, and what the executor raises.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._type = type(executor).__name__
        self.device = executor.device
        if not isinstance(self.device, str) or not self.device:
            raise self._error("device", self.device, "a text that is not empty")
        self.shape = self._read_shape(executor.shape)
        self.parameters = self._read_count("parameters", executor.parameters)
        self.tolerance = executor.tolerance
        if not _is_time(self.tolerance):
            raise self._error("tolerance", self.tolerance, "a finite number, at least 0")
        self.image_dtype = image_dtype(executor)
        if self.image_dtype not in ("float32", "float16"):
            raise self._error("image_dtype", self.image_dtype, "'float32' or 'float16'")

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        """See Executor."""
        forms = self._executor.prepare(batch)
        if not isinstance(forms, tuple) or not forms or not all(isinstance(form, OutputForm) for form in forms):
            raise self._error("prepare()", forms, "a tuple with an OutputForm for each output")
        for form in forms:
            try:
                np.dtype(form.dtype)
            except TypeError:
                raise self._error("prepare()", form, "the name of a dtype in NumPy") from None
        return forms

    def attach(self, inputs: Array, outputs: tuple[Array, ...]) -> None:
        """See Executor."""
        self._executor.attach(inputs, outputs)

    def run(self, images: Array, outputs: tuple[Array, ...]) -> RunTimes:
        """See Executor."""
        return self._checked("run()", self._executor.run(images, outputs))

    def transfer(self, images: Array) -> RunTimes:
        """See Executor."""
        return self._checked("transfer()", self._executor.transfer(images))

    def _checked(self, what: str, times: Any) -> RunTimes:
        if not isinstance(times, RunTimes):
            raise self._error(what, times, "a RunTimes")
        if not all(_is_time(getattr(times, field.name)) for field in fields(times)):
            raise self._error(what, times, "finite times in milliseconds, at least 0")
        return times

    def _read_shape(self, shape: Any) -> tuple[int, int, int]:
        if isinstance(shape, (tuple, list)) and len(shape) == 3 and all(isinstance(size, Integral) for size in shape):
            channels, height, width = (int(size) for size in shape)
            if min(channels, height, width) > 0:
                return channels, height, width
        raise self._error("shape", shape, "the shape of one image, (3, height, width)")

    def _read_count(self, what: str, count: Any) -> int:
        if not isinstance(count, Integral) or count < 0:
            raise self._error(what, count, "an integer, at least 0")
        return int(count)

    def _error(self, what: str, found: Any, allowed: str) -> ExecutorError:
        text = " ".join(repr(found).split())[:200]
        return ExecutorError(f"{what} of its executor {self._type} is {text}; allowed: {allowed}")


def _is_time(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and float(value) >= 0.0
