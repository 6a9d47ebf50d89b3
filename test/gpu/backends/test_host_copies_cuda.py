"""Copies of outputs in pinned memory that is used again, on a GPU."""

from __future__ import annotations

import threading

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
