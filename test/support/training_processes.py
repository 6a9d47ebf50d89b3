"""What processes of a training group do in tests: module-level, because new processes import it."""

from __future__ import annotations

import copy
import os
import signal
import time
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from multi_dnn_ros.profiling.training.processes import Member, Report
from multi_dnn_ros.profiling.training.step import Batch, Replica


class Branches(nn.Module):
    """Convolutions with and without groups and bias, normalization, attention, a shared layer and functional calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.shared = nn.Linear(8, 8)
        self.last = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(image)))
        x = self.pool(self.grouped(x) + x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        tokens = self.shared(F.gelu(self.shared(tokens)))
        return self.last(tokens.mean(1))


def batch_of(dtype: torch.dtype, count: int = 8) -> Batch:
    """The whole batch of all processes."""
    dice = torch.Generator().manual_seed(1)
    return Batch(torch.randn(count, 3, 8, 8, generator=dice).to(dtype), torch.arange(count))


class InDtype(Replica):
    """Computes the loss in the network's own dtype."""

    def forward(self, batch: Batch) -> torch.Tensor:
        return F.cross_entropy((self._ddp or self.network)(batch.images), batch.labels % 5)


def gradients(member: Member, argument: Any, report: Report) -> dict[str, list[npt.NDArray[Any]]]:
    """By dtype and method: gradients of this process's share, averaged over the processes."""
    found = {}
    for dtype in (torch.float64, torch.float32):
        whole = batch_of(dtype)
        share = slice(member.rank, None, member.processes)
        own = Batch(whole.images[share], whole.labels[share])
        for method, bucket in (("layers", None), ("ddp", 0.001)):
            replica = InDtype(copy.deepcopy(Branches().to(dtype)), bucket_mib=bucket)
            # As arrays: the memory of a tensor that is sent belongs to this process, which may end first.
            found[f"{dtype} {method}"] = [tensor.numpy() for tensor in replica.gradients(own, method)]
    return found


def fails(member: Member, argument: str, report: Report) -> None:
    """argument: how process 1 fails, while the others wait for it."""
    if member.rank == 1:
        if argument == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise TypeError("unexpected\nsecond line")
    torch.distributed.barrier()
    time.sleep(600)


def lives(member: Member, argument: str, report: Report) -> None:
    """Writes its process ID to the folder `argument` and stays."""
    with open(os.path.join(argument, str(member.rank)), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
