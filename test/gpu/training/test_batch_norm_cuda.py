"""Batch normalization over two processes on a GPU. With gloo, because NCCL refuses two processes on one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multi_dnn_ros.training.distributed import synchronize_batch_norm

_BATCH = 9


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)).cuda()


def one_pass(layers: nn.Module, first: int, last: int, precision: torch.dtype) -> list[torch.Tensor]:
    """Gradients and statistics, on the CPU."""
    image = torch.randn(_BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(2))[first:last].cuda()
    with torch.autocast("cuda", precision, enabled=precision != torch.float32):
        outputs = layers(image.to(memory_format=torch.channels_last))
    (outputs.float() ** 2).sum().backward()
    found = [weight.grad for weight in layers.parameters() if weight.grad is not None]
    return [tensor.cpu() for tensor in (*found, layers[1].running_mean, layers[1].running_var)]


def part(rank: int, folder: str, precision: torch.dtype) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    layers = network()
    synchronize_batch_norm(layers)
    found = one_pass(layers, rank * _BATCH // 2, (rank + 1) * _BATCH // 2, precision)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(("precision", "tolerance"), [(torch.float32, 5e-3), (torch.bfloat16, 3e-2)])
def test_two_processes_compute_what_one_does(tmp_path: Path, precision: torch.dtype, tolerance: float) -> None:
    torch.multiprocessing.spawn(part, (str(tmp_path), precision), nprocs=2)
    parts = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    expected = one_pass(network(), 0, _BATCH, precision)
    gradients = len(expected) - 2
    # A bias before a batch norm has no influence: its gradient is rounding noise, small against that of the weights.
    least = 0.1 * max(float(whole.abs().max()) for whole in expected[:gradients])
    for number, whole in enumerate(expected):
        found = parts[0][number] + parts[1][number] if number < gradients else parts[0][number]
        scale = max(float(whole.abs().max()), least if number < gradients else 1e-3)
        assert float((found - whole).abs().max()) <= tolerance * scale, number
