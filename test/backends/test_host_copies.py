"""Copies in memory that is used again, with a fake driver. On a GPU: test/gpu/backends."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import cuda_driver
from multi_dnn_ros.backends.cuda_driver import HostCopies


class Driver:
    """Copies at once."""

    def copy_to_host(self, address: int, source: torch.Tensor) -> None:
        ctypes.memmove(address, source.data_ptr(), source.nbytes)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> HostCopies:
    monkeypatch.setattr(cuda_driver, "enqueue_on", lambda device: Driver())
    return HostCopies()


def packed(value: int, size: int = 4) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def test_memory_is_used_again_once_nothing_refers_to_it(copies: HostCopies) -> None:
    addresses = set()
    for number in range(5):
        copied = copies.start(packed(number))
        assert torch.equal(copied, packed(number))
        addresses.add(copied.data_ptr())
        del copied
    assert len(addresses) == 1


KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda copied: copied,
    "slice": lambda copied: copied[1:],
    "array": lambda copied: copied.numpy(),
    "view of the array": lambda copied: copied.view(torch.int32).numpy().view("uint8")[1:],
}


@pytest.mark.parametrize("kept", KEPT)
def test_memory_of_a_result_is_not_overwritten(copies: HostCopies, kept: str) -> None:
    result = KEPT[kept](copies.start(packed(1)))
    gc.collect()
    copies.start(packed(0))
    assert int(result.sum()) == len(result)


def test_outputs_whose_size_changes_do_not_take_more_and_more_memory(
    copies: HostCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "_MAX_SIZES", 2)
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **options: torch.zeros(tensor.shape, dtype=tensor.dtype))
    for _ in range(2):
        for size in range(1, 10):
            assert torch.equal(copies.start(packed(size, size)), packed(size, size))
    assert len(copies._free) == 2
