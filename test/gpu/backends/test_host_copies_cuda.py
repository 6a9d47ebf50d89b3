"""Copies of outputs in pinned memory that is used again, on a GPU."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends.cuda_driver import HostCopies, enqueue_on

GPU = torch.device("cuda", 0)


def test_a_copy_has_the_values_of_the_stream_and_the_memory_is_pinned_and_used_again() -> None:
    copies, stream, addresses = HostCopies(), torch.cuda.Stream(GPU), set()
    for seed in range(3):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            generator = torch.Generator(GPU).manual_seed(seed)
            source = torch.randint(0, 256, (150_001,), device=GPU, generator=generator, dtype=torch.uint8)
            copied = copies.start(source)
        stream.synchronize()
        assert torch.equal(copied, source.cpu())
        assert copied.is_pinned()
        addresses.add(copied.data_ptr())
        del copied
    assert len(addresses) == 1


@pytest.mark.parametrize("kept", [lambda copied: copied[1:], lambda copied: copied.view(torch.int32).numpy()[1:]])
def test_memory_of_a_result_is_not_overwritten(kept: Callable[[torch.Tensor], Any]) -> None:
    copies = HostCopies()
    result = kept(copies.start(torch.ones(8, dtype=torch.uint8, device=GPU)))
    torch.cuda.synchronize(GPU)
    before = result.sum()
    gc.collect()
    copies.start(torch.zeros(8, dtype=torch.uint8, device=GPU))
    torch.cuda.synchronize(GPU)
    assert result.sum() == before


def test_a_thread_that_has_not_used_cuda_before_can_enqueue() -> None:
    source = torch.arange(100, device=GPU, dtype=torch.uint8)
    found, target = [], torch.zeros_like(source)

    def work() -> None:
        found.append(HostCopies().start(source))
        enqueue_on(GPU).copy(target, source)

    torch.cuda.synchronize(GPU)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize(GPU)
    assert torch.equal(found[0], source.cpu())
    assert torch.equal(target, source)
