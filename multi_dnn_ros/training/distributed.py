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

#: Maximum wait for rank 0, which alone computes scores.
_TIMEOUT = timedelta(minutes=30)


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Context that joins the processes started by torchrun (NCCL on GPUs, gloo on CPUs).

    device: cpu, cuda, cuda:<number>; with torchrun each process of a host gets the GPU of its local rank. Yields the
    device. Inside another such context, that one is used.
    """
    chosen = torch.device(device)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    if not several or dist.is_initialized():
        yield chosen
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield chosen
    finally:
        dist.destroy_process_group()


def existing_device(name: str) -> torch.device:
    """The device of that name. Raises ValueError if it does not exist, so that training fails before preparing its
    data.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}: expected cpu, cuda or cuda:<number>") from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"--device {name}: PyTorch sees {count} GPUs here")
    return device


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def replicated(network: nn.Module, unused: bool = False) -> nn.Module:
    """A network whose backward pass averages the gradients over all processes; `network` itself for one process.

    unused: whether some weights get no gradient. Looking for them costs time in every step.
    """
    if world() == 1:
        return network
    from torch.nn.parallel import DistributedDataParallel

    device = next(network.parameters()).device
    # Buffers are not synchronized: each process normalizes over its own share, and rank 0's statistics are kept.
    return DistributedDataParallel(
        network, device_ids=[device.index] if device.type == "cuda" else None, find_unused_parameters=unused
    )


def mean(value: Tensor) -> Tensor:
    """Mean of a scalar tensor over the processes, on all of them."""
    if world() > 1:
        value = value.clone()
        dist.all_reduce(value)
        value /= world()
    return value


def from_first(value: Any) -> Any:
    """Rank 0's object, on all processes; other values are ignored."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def tensors_from_first(tensors: dict[str, Tensor]) -> None:
    """Set `tensors` to rank 0's, in place."""
    if world() > 1:
        for name in sorted(tensors):
            dist.broadcast(tensors[name], src=0)
