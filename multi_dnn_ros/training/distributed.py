"""Training in several processes, started by torchrun: each has the whole network and a share of every batch.

Without torchrun all functions behave as for one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from multi_dnn_ros.common.processes import die_with_parent

#: Maximum wait for rank 0, which alone computes scores.
_TIMEOUT = timedelta(minutes=30)


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Context that joins the processes started by torchrun (NCCL on GPUs, gloo on CPUs).

    device: cpu, cuda, cuda:<number>; with torchrun each process of a host gets the GPU of its local rank. Yields the
    device. Ends this process if torchrun was killed.
    """
    chosen = torch.device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield chosen
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Otherwise this process would continue alongside the one that a new torchrun starts, and keep its GPU.
        die_with_parent(os.getppid())
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def replicated(network: nn.Module) -> nn.Module:
    """A network whose backward pass averages the gradients over all processes; `network` itself for one process.

    Its outputs are those of `network`; some weights may get no gradient. On GPUs batch normalization uses the whole
    batch of all processes; on CPUs, for which PyTorch has no such layer, each process normalizes over its own share.
    """
    if world() == 1:
        return network
    on_gpu = next(network.parameters()).is_cuda
    if on_gpu:
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # replaces the layers of `network` itself
    # Before each forward pass the buffers are set to those of rank 0, whose statistics are kept.
    return nn.parallel.DistributedDataParallel(
        network,
        device_ids=[torch.cuda.current_device()] if on_gpu else None,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,  # saves a copy of the gradients
    )


def total(value: Tensor) -> Tensor:
    """Sum of a tensor over the processes, in all of them."""
    if world() > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def from_first(value: Any) -> Any:
    """Rank 0's object, in all processes; the values of other processes are ignored."""
    values = [value]
    if world() > 1:
        dist.broadcast_object_list(values, src=0)
    return values[0]
