"""Distinguishes failures of a GPU and its libraries from other exceptions that a layer may raise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from multi_dnn_ros.common.errors import error_and_causes, summarize_error

if TYPE_CHECKING:
    import torch

_NO_MEMORY = re.compile(r"CUDA error: out of memory|_STATUS_ALLOC_FAILED")
_FAILURE = re.compile(r"CUDA error|CUDA driver error|cuDNN error|CUBLAS_STATUS|CUDNN_STATUS|CUFFT_STATUS")
_REQUEST = re.compile(r"Tried to allocate ([\d.]+ \w+)")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or an error that caused it, says that the GPU ran out of memory."""
    return any(
        type(each).__name__ == "OutOfMemoryError" or (isinstance(each, RuntimeError) and _NO_MEMORY.search(str(each)))
        for each in error_and_causes(error)
    )


def is_device_failure(error: BaseException) -> bool:
    """Whether the error, or an error that caused it, says that a kernel, the driver or a library of the GPU failed.

    False for a lack of memory.
    """
    if is_out_of_memory(error):
        return False
    return any(isinstance(each, RuntimeError) and _FAILURE.search(str(each)) for each in error_and_causes(error))


def memory_shortage(error: BaseException, device: torch.device, allocated_before: int) -> str:
    """Text for a message: how much memory was requested and how much there is.

    allocated_before: bytes that this process had allocated on `device` before the failed DNN was prepared.
    """
    request = _REQUEST.search(str(error))
    wanted = f"a request for {request.group(1)} failed" if request else summarize_error(error)
    if device.type != "cuda":
        return wanted
    import torch

    allocated = torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    return (
        f"{wanted} after {mebibytes(allocated - allocated_before)} for this DNN and {mebibytes(allocated_before)} for "
        f"others; {mebibytes(free)} of {mebibytes(total)} are free"
    )


def mebibytes(count: int) -> str:
    """Bytes as text in MiB."""
    return f"{count / 2**20:.0f} MiB"
