"""Runs a part of a DNN eager if a compiler fails on it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.errors import summarize_error

log = logging.getLogger(__name__)

T = TypeVar("T")


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
