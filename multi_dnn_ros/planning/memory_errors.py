"""Distinguishes out-of-memory errors, of the host or a device, from others. Imports PyTorch only if it is in use."""

from __future__ import annotations

import sys

from multi_dnn_ros.common.error_causes import error_and_causes

#: PyTorch's CPU allocator and ONNX Runtime have no exception type for this; both raise RuntimeError.
_TEXTS = ("can't allocate memory", "bad_alloc")


def is_memory_error(error: BaseException | None) -> bool:
    """Whether this error, or one that caused it, is an out-of-memory error of the host or the device."""
    for each in error_and_causes(error):
        if isinstance(each, MemoryError) or any(text in str(each) for text in _TEXTS):
            return True
    if "torch" not in sys.modules:  # not an error of PyTorch; importing it here would take seconds
        return False
    from multi_dnn_ros.backends.device_errors import is_out_of_memory

    return is_out_of_memory(error)
