"""Copies in memory that is reused, with a fake driver. On a GPU: test/gpu/backends."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from multi_dnn_ros.backends import host_copies
from multi_dnn_ros.backends.host_copies import Array, HostCopies


class Memory:
    """Counts allocations."""

    def __init__(self) -> None:
        self.allocated = 0

    def __call__(self, tensor: torch.Tensor) -> Array:
        self.allocated += 1
        return np.zeros_like(tensor.numpy())


class Driver:
    """Copies at once."""

    def copy_to_host(self, address: int, source: torch.Tensor) -> None:
        ctypes.memmove(address, source.data_ptr(), source.nbytes)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(host_copies, "enqueue_on", lambda device: Driver())
    return Memory()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5)])
def test_a_copy_has_the_values_shape_and_type(memory: Memory, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = (torch.rand(shape) * 100).to(dtype)
    copied = HostCopies(memory).start(source)
    assert (copied.shape, copied.dtype) == (source.shape, dtype)
    assert torch.equal(copied, source)
    assert memory.allocated == 1


def test_memory_is_used_again_once_nothing_refers_to_it(memory: Memory) -> None:
    copies = HostCopies(memory)
    for number in range(5):
        copied = copies.start(torch.full((2, 3), float(number)))
        assert copied[0, 0] == number
        del copied
    assert memory.allocated == 1


KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda copied: copied,
    "slice": lambda copied: copied[1:],
    "array": lambda copied: copied.numpy(),
    "slice of the array": lambda copied: copied.numpy()[1:],
}


@pytest.mark.parametrize("kept", KEPT)
def test_memory_of_a_result_is_not_overwritten(memory: Memory, kept: str) -> None:
    copies = HostCopies(memory)
    result = KEPT[kept](copies.start(torch.ones(4)))
    gc.collect()
    other = copies.start(torch.zeros(4))
    assert memory.allocated == 2
    assert float(result.sum()) == len(result)
    del result, other
    copies.start(torch.zeros(4))
    assert memory.allocated == 2


def test_copies_of_several_shapes_and_types_do_not_share_memory(memory: Memory) -> None:
    copies = HostCopies(memory)
    for _ in range(2):
        one, two, three = (
            copies.start(torch.ones(4)), copies.start(torch.full((2, 2), 2.0)), copies.start(torch.full((4,), 3)),
        )  # fmt: skip
        assert (float(one.sum()), float(two.sum()), int(three.sum())) == (4.0, 8.0, 12)
        del one, two, three
    assert memory.allocated == 3


def test_copies_of_types_that_numpy_does_not_have_are_made_by_pytorch(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_copy_by_pytorch", torch.Tensor.clone)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        source = torch.ones(4).to(dtype)
        assert torch.equal(HostCopies(memory).start(source).float(), source.float())
    assert memory.allocated == 0


def test_outputs_whose_shape_changes_do_not_take_more_and_more_memory(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "_copy_by_pytorch", torch.Tensor.clone)
    copies = HostCopies(memory)
    for _ in range(2):
        for rows in range(1000):
            assert len(copies.start(torch.ones(rows, 4))) == rows
    assert memory.allocated == 256
