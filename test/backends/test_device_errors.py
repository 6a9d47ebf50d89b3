"""Errors of a failing device are told from those of a layer."""

from __future__ import annotations

import pytest
import torch

from multi_dnn_ros.backends.device_errors import is_device_failure, is_out_of_memory, memory_shortage

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def test_device_errors_are_distinguished_from_layer_errors():
    assert is_device_failure(RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be reported later"))
    assert is_device_failure(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"))
    assert not is_device_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_device_failure(ValueError(ILLEGAL))
    memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
    assert is_out_of_memory(memory)
    assert not is_device_failure(memory)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    behind = RuntimeError("operation failed due to a previous error during capture")
    behind.__context__ = memory
    assert is_out_of_memory(behind)
    assert memory_shortage(memory, torch.device("cpu"), 0) == "a request for 20.00 MiB failed"


@pytest.mark.parametrize("connect", ["__cause__", "__context__"])
@pytest.mark.parametrize(
    ("first", "recognize"), [(RuntimeError(ILLEGAL), is_device_failure), (torch.OutOfMemoryError(), is_out_of_memory)]
)
def test_a_device_error_is_recognized_behind_another_error(first, recognize, connect):
    raised = ValueError("decoding failed")
    assert not recognize(raised)
    setattr(raised, connect, first)
    assert recognize(raised)
    raised.__suppress_context__ = True  # as by `from None`
    assert recognize(raised)
    first.__context__ = raised
    assert recognize(raised)
    first.__context__ = None
