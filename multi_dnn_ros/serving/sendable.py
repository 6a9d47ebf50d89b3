"""Checks that a result can be sent from the engine process to the node's."""

from __future__ import annotations

import io
from pickle import Pickler
from typing import Any

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError


def check_sendable(result: Any) -> None:
    """Raise ExtensionError if `result` cannot be pickled or holds objects of PyTorch.

    Unpickling these would import PyTorch in the node's process: its memory grows from 85 to 543 MiB.
    """
    text = f"its result, of type {type(result).__module__}.{type(result).__qualname__},"
    try:
        _Pickler(io.BytesIO(), protocol=5).dump(result)
    except _TorchObjectError as error:
        raise ExtensionError(f"{text} holds an object of PyTorch: {error}; {_ALLOWED}") from None
    except Exception as error:  # whatever the methods of the result's classes raise
        reason = f"{type(error).__name__}: {summarize_error(error)}"
        raise ExtensionError(f"{text} cannot be pickled: {reason}; {_ALLOWED}") from error


_ALLOWED = "allowed: NumPy arrays and plain values"


class _TorchObjectError(Exception):
    """The message is the name of the object or of its type."""


class _Pickler(Pickler):
    def persistent_id(self, pickled: Any) -> None:
        """Called by pickle with every object, class and function before it is pickled."""
        module = getattr(pickled, "__module__", None)
        if isinstance(module, str) and module.partition(".")[0] == "torch":
            raise _TorchObjectError(f"{module}.{getattr(pickled, '__name__', type(pickled).__name__)}")
