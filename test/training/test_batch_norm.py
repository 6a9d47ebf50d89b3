"""Batch normalization, random numbers and frozen weights when several processes train one network together."""

from __future__ import annotations

import copy
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fixed_batches import FixedBatches
from fork_server import ForkServer
from torch import Tensor, nn
from torch.nn import functional as F

from multi_dnn_ros.models.decomposed import TuckerPlan, apply_plan
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.batch_norm import GlobalBatchNorm, with_global_batch_norm
from multi_dnn_ros.training.loop import Schedule, train
from multi_dnn_ros.training.samples import Batch

pytestmark = pytest.mark.usefixtures("one_thread")

#: Batches of nine: two processes get four and five images of each.
_BATCH = 9


def network() -> nn.Module:
    """A decomposed network with three kinds of normalization, frozen weights and one weight without a gradient.

    Its weights are random, because the signs of a decomposition's factors may differ from process to process.
    """
    torch.manual_seed(1)
    layers = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.BatchNorm2d(12, momentum=None),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(12, affine=False), nn.Linear(12, 3),
    )  # fmt: skip
    apply_plan(layers, {"0": TuckerPlan(in_rank=None, out_rank=6), "3": TuckerPlan(in_rank=6, out_rank=6)}, "test")
    layers.register_parameter("unused", nn.Parameter(torch.ones(2)))
    layers[0].requires_grad_(False)
    layers[1].bias.requires_grad_(False)
    return layers.double().train()


class Doubles(FixedBatches):
    def epoch(self, number: int) -> Iterator[Batch]:
        for batch in super().epoch(number):
            yield {**batch, "image": batch["image"].double()}


class Interrupted(Exception):
    """Ends training, in all processes, in the middle of an epoch."""


class InterruptedBatches(Doubles):
    interrupted_epoch = 2

    def epoch(self, number: int) -> Iterator[Batch]:
        for k, batch in enumerate(super().epoch(number)):
            if (number, k) == (self.interrupted_epoch, 1):
                raise Interrupted
            yield batch


def rows() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    image = torch.randint(0, 256, (27, 3, 8, 8), generator=generator, dtype=torch.uint8)
    image[::2] //= 8  # the halves of a batch differ much, which normalizing each by itself would hide
    return {"image": image, "label": torch.arange(27) % 3}


def cross_entropy(outputs: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs, batch["label"])


def learn(
    layers: nn.Module | None = None, kind: type[FixedBatches] = Doubles,
    checkpoint: Path | None = None, drawn: list[float] | None = None,
) -> nn.Module:  # fmt: skip
    """Train for four epochs of three steps; the last one is kept."""
    layers = network() if layers is None else layers

    def loss(outputs: Any, batch: Batch) -> Tensor:
        if drawn is not None:
            drawn.append(float(torch.rand(())))  # also changes what dropout draws next
        return cross_entropy(outputs, batch)

    schedule = Schedule(4, 0.05, optimizer="sgd", ema=0.9, precision="fp32", seed=7)
    train(
        layers, kind(rows(), _BATCH, seed=3), loss, lambda net: {"top1": time.monotonic()}, schedule, main="top1",
        checkpoint=checkpoint, progress=False,
    )  # fmt: skip
    return layers


def one_pass(layers: nn.Module, first: int, last: int) -> dict[str, Tensor]:
    """Outputs, gradients and statistics for these images of a batch."""
    batch = {name: array[:_BATCH][first:last] for name, array in rows().items()}
    image = (batch["image"].double() / 255.0).requires_grad_()
    outputs = layers(image)
    (cross_entropy(outputs, batch) * (last - first) / _BATCH).backward()
    found = {"outputs": outputs.detach(), "image": image.grad}
    found |= {f"gradient {name}": weight.grad for name, weight in layers.named_parameters() if weight.grad is not None}
    return {**found, **{name: buffer.clone() for name, buffer in layers.named_buffers()}}


def in_each_process(folder: Path) -> None:
    """What each of the two processes runs."""
    rank = distributed.rank()
    layers = network()
    with_global_batch_norm(layers)
    first, last = rank * _BATCH // 2, (rank + 1) * _BATCH // 2
    content: dict[str, Any] = {"pass": one_pass(layers, first, last)}
    trained = learn()
    content["trained"] = trained.state_dict()
    content["layers"] = [type(module).__name__ for module in trained.modules()]
    random = [nn.Sequential(network(), nn.Dropout(0.3)) for _ in range(3)]
    drawn: list[list[float]] = [[], [], []]
    for k in range(2):
        learn(layers=random[k], drawn=drawn[k])
    again, checkpoint = copy.deepcopy(random[2]), folder / "c.ckpt"
    try:
        learn(layers=random[2], kind=InterruptedBatches, checkpoint=checkpoint, drawn=[])
    except Interrupted:
        learn(layers=again, checkpoint=checkpoint, drawn=drawn[2])
    content["random"] = [random[0].state_dict(), random[1].state_dict(), again.state_dict()]
    content["drawn"] = drawn
    torch.save(content, folder / f"rank{rank}.pt")


_PROGRAM = """
import sys, torch
from pathlib import Path
from multi_dnn_ros.training import distributed
sys.path.insert(0, {folder!r})
from test_batch_norm import in_each_process
torch.set_num_threads(1)
with distributed.process_group("cpu"):
    in_each_process(Path({out!r}))
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> list[dict[str, Any]]:
    """The contents that the two processes saved."""
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    program = _PROGRAM.format(folder=str(Path(__file__).parent), out=str(out))
    processes = [
        fork_server.popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def assert_equal(found: Tensor, expected: Tensor, name: str) -> None:
    """Assert equality up to 1e-6 of the largest value, because sums that should be 0 are rounding errors."""
    difference = (found.double() - expected.double()).abs().max()
    assert difference <= 1e-6 * expected.double().abs().max().clamp(min=1e-9), name


def test_a_pass_in_two_processes_is_that_of_the_whole_batch(together: list[dict[str, Any]]) -> None:
    alone = one_pass(network(), 0, _BATCH)
    parts = [rank["pass"] for rank in together]
    for name, expected in alone.items():
        if name in ("outputs", "image"):
            found = torch.cat([part[name] for part in parts])
        elif name.startswith("gradient"):
            found = parts[0][name] + parts[1][name]
        else:
            found = parts[0][name]
        assert_equal(found, expected, name)
    assert not any("unused" in name or name.startswith("gradient 0.") for name in alone)


def test_training_in_two_processes_is_that_of_one(together: list[dict[str, Any]]) -> None:
    """Includes frozen and unused weights, which do not change, and the averaged weights with their statistics."""
    alone, before = learn().state_dict(), network().state_dict()
    for rank in together:
        for name, expected in alone.items():
            assert_equal(rank["trained"][name], expected, name)
    frozen = [name for name in before if name.startswith("0.") or name in ("1.bias", "unused")]
    assert len(frozen) == 5  # two factors and a bias in place of the first convolution
    assert all(torch.equal(together[0]["trained"][name], before[name]) for name in frozen)


def test_the_trained_network_has_ordinary_layers(together: list[dict[str, Any]]) -> None:
    names = [type(module).__name__ for module in network().modules()]
    assert together[0]["layers"] == names
    assert together[0]["trained"].keys() == network().state_dict().keys()


def test_each_process_draws_its_own_numbers_and_the_same_again(together: list[dict[str, Any]]) -> None:
    """Also after an interruption in the middle of the third epoch."""
    for rank in together:
        first, second, resumed = rank["drawn"]
        assert len(first) == 12
        assert first == second
        assert resumed[-6:] == first[-6:]
        one, *others = rank["random"]
        assert all(torch.equal(value, other[name]) for other in others for name, value in one.items())
    assert not set(together[0]["drawn"][0]) & set(together[1]["drawn"][0])


class Activated(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return torch.relu(super().forward(input))


def test_layers_that_do_more_than_normalize_are_kept_and_named(caplog: pytest.LogCaptureFixture) -> None:
    layers = nn.Sequential(Activated(3), nn.BatchNorm2d(3))
    with_global_batch_norm(layers)
    assert [type(layer) for layer in layers] == [Activated, GlobalBatchNorm]
    assert "1 layers of class Activated normalize over the images of one process" in caplog.text
