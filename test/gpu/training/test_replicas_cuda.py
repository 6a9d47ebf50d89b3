"""Training in several processes on a GPU. With gloo, because NCCL refuses two processes on one GPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from multi_dnn_ros.training import loop
from multi_dnn_ros.training.batches import ArrayBatches, Inputs
from multi_dnn_ros.training.loop import Schedule, train

_BATCH = 33  # an odd number: one process has an image more
#: Two epochs on smaller images, then two on the others.
_GROWING = Inputs(small=(6, 6), small_epochs=2)


def train_part(rank: int, folder: str, captured: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    ).cuda()
    labels = torch.arange(99) % 3
    image = torch.randint(0, 90, (99, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image[torch.arange(99), labels] += 120
    batches = ArrayBatches({"image": image.cuda(), "label": labels.cuda()}, _BATCH, seed=1, inputs=_GROWING)
    real, found, scores = loop.capture_passes, [], itertools.count()

    def capture(network: nn.Module, image: Tensor, precision: str) -> nn.Module:
        found.append(real(network, image, precision) if captured else network)
        return found[-1]

    loop.capture_passes = capture
    schedule = Schedule(4, 0.02, ema=0.0, precision="fp32", seed=3)
    outcome = train(
        network, batches, lambda outputs, batch: F.cross_entropy(outputs.float(), batch["label"]),
        lambda scored: {"top1": float(next(scores))}, schedule, main="top1", progress=False,
    )  # fmt: skip
    assert len(found) == 2
    assert all((passes is not network) == captured for passes in found)
    weights = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
    torch.save((weights, [row["loss"] for row in outcome.history]), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_captured_passes_of_two_processes_train_to_the_same_weights(tmp_path: Path) -> None:
    results = []
    for captured in (True, False):
        folder = tmp_path / str(captured)
        folder.mkdir()
        torch.multiprocessing.spawn(train_part, (str(folder), captured), nprocs=2)
        results.append([torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)])
    (weights, losses), (other_weights, _) = results[0]
    expected, expected_losses = results[1][0]
    assert losses[-1] < losses[0] / 2
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected_losses), rtol=1e-3, atol=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-2, atol=1e-3, msg=name)
        assert torch.equal(tensor, other_weights[name]), name
