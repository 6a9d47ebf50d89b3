"""Copies of outputs in pinned memory that is reused, on a GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.host_copies import HostCopies

GPU = torch.device("cuda", 0)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 4), (300, 500)])
def test_a_copy_has_the_values_of_the_stream(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    copies, stream = HostCopies(), torch.cuda.Stream(GPU)
    for seed in range(3):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            source = (torch.rand(shape, device=GPU, generator=torch.Generator(GPU).manual_seed(seed)) * 100).to(dtype)
            copied = copies.start(source)
        stream.synchronize()
        torch.testing.assert_close(copied, source.cpu(), rtol=0.0, atol=0.0)


def test_a_transposed_tensor_is_copied_in_its_own_order() -> None:
    source = torch.arange(12.0, device=GPU).view(3, 4).t()
    copied = HostCopies().start(source)
    torch.cuda.synchronize(GPU)
    assert copied.tolist() == source.tolist()


def test_the_memory_is_pinned_and_used_again() -> None:
    copies, source = HostCopies(), torch.rand(1000, device=GPU)
    addresses = set()
    for _ in range(3):
        copied = copies.start(source)
        assert copied.is_pinned()
        addresses.add(copied.data_ptr())
        del copied
    assert len(addresses) == 1


def test_a_thread_that_has_not_used_cuda_before_can_enqueue() -> None:
    source, found = torch.rand(1000, device=GPU), []
    target = torch.zeros_like(source)

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
