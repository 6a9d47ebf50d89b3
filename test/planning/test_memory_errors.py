"""Out-of-memory errors are recognized, also as the cause of another error."""

from __future__ import annotations

import pytest
import torch

from multi_dnn_ros.planning.memory_errors import is_memory_error

SHORTAGES = [
    MemoryError("400 bytes of shared memory cannot be allocated"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
    RuntimeError("std::bad_alloc"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: out of memory"),
]


def read_data(shortage: Exception, *, named: bool) -> None:
    """Raise an error that another one has caused. named: with `raise ... from`."""
    try:
        raise shortage
    except Exception as error:
        if named:
            raise ValueError("the data cannot be read") from error
        raise ValueError("the data cannot be read")  # noqa: B904, as the other case


@pytest.mark.parametrize("shortage", SHORTAGES)
@pytest.mark.parametrize("named", [True, False])
def test_an_out_of_memory_error_is_recognized_as_the_cause_of_another_error(shortage: Exception, named: bool) -> None:
    assert is_memory_error(shortage)
    with pytest.raises(ValueError, match="the data cannot be read") as raised:
        read_data(shortage, named=named)
    assert is_memory_error(raised.value)


def test_other_errors_are_not_out_of_memory_errors() -> None:
    assert not is_memory_error(None)
    assert not is_memory_error(ValueError("memory"))
    assert not is_memory_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
