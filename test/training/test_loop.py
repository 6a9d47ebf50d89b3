"""The training loop learns, resumes to the same weights, and never damages the last good checkpoint."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from small_disk import small_disk
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

from multi_dnn_ros.models.networks import ConvBlock, DetectorNet
from multi_dnn_ros.training.loop import Outcome, Schedule, Score, TrainingError, save_checkpoint, train
from multi_dnn_ros.training.losses import ClassificationLoss, DetectionLoss, Loss
from multi_dnn_ros.training.samples import Batch

pytestmark = pytest.mark.usefixtures("one_thread")
LOSS = ClassificationLoss(smoothing=0.0)
SCHEDULE = Schedule(epochs=6, lr=0.02, ema=0.9, seed=3)


class Killed(BaseException):
    """Ends the run in the middle of an epoch, like a signal."""


class FixedBatches:
    """Batches of arrays without augmentation. arrays: (N, ...) by name. dies: epoch in which the run is killed.

    overflows: epoch in which the variance of the images exceeds float32.
    """

    def __init__(self, arrays: Mapping[str, Tensor], batch_size: int, dies: int = -1, overflows: int = -1) -> None:
        self.arrays, self.batch_size, self.dies, self.overflows = dict(arrays), batch_size, dies, overflows

    def __len__(self) -> int:
        return len(self.arrays["image"]) // self.batch_size

    def epoch(self, number: int) -> Iterator[Batch]:
        order = torch.randperm(len(self.arrays["image"]), generator=torch.Generator().manual_seed(number))
        for k, rows in enumerate(order[: len(self) * self.batch_size].split(self.batch_size)):
            if number == self.dies and k == 3:
                raise Killed
            batch = {name: array[rows] for name, array in self.arrays.items()}
            yield {**batch, "image": batch["image"] / 255.0 * (1e25 if number == self.overflows else 1.0)}


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        ConvBlock(3, 8, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 3)
    )


def coloured(**options: int) -> FixedBatches:
    """Images of three colours, which are the classes."""
    labels = torch.arange(48) % 3
    image = torch.randint(0, 90, (48, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image[torch.arange(48), labels] += 120
    return FixedBatches({"image": image, "label": labels}, 8, **options)


def accuracy(network: nn.Module) -> dict[str, float]:
    data = coloured().arrays
    with torch.no_grad():
        return {"top1": float((network(data["image"] / 255.0).argmax(1) == data["label"]).float().mean())}


def run(
    batches: FixedBatches, checkpoint: Path | None = None, schedule: Schedule = SCHEDULE,
    loss: Loss = LOSS, score: Score = accuracy, network: nn.Module | None = None, main: str = "top1",
) -> tuple[nn.Module, Outcome]:  # fmt: skip
    network = classifier() if network is None else network
    return network, train(network, batches, loss, score, schedule, main=main, checkpoint=checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 0.02), ("sgd", 0.2)])
def test_it_learns_to_classify(optimizer: str, lr: float) -> None:
    network, outcome = run(coloured(), schedule=dataclasses.replace(SCHEDULE, optimizer=optimizer, lr=lr))
    assert accuracy(network)["top1"] > 0.9
    assert outcome.history[-1]["loss"] < outcome.history[0]["loss"]
    assert not network.training


def test_what_training_makes_worse_is_not_kept() -> None:
    network, _ = run(coloured())
    before = copy.deepcopy(network.state_dict())
    schedule = dataclasses.replace(SCHEDULE, epochs=2, optimizer="sgd", lr=50.0, ema=0.0)
    _, outcome = run(coloured(), schedule=schedule, network=network)
    assert outcome.epoch == -1
    assert outcome.history[-1]["top1"] < outcome.best["top1"] == accuracy(network)["top1"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_statistics_that_are_not_finite_end_the_training(ema: float) -> None:
    """The loss is finite, because images are 0 when they are normalized by an infinite variance."""
    with pytest.raises(TrainingError, match=r"epoch 2, lr 0\.02: 0\.1\.running_var of the network is not finite"):
        run(coloured(overflows=1), schedule=dataclasses.replace(SCHEDULE, ema=ema))


@pytest.mark.parametrize("killed_in", [0, 5])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, killed_in: int) -> None:
    whole, expected = run(coloured())
    checkpoint = tmp_path / "run" / "last.ckpt"
    with pytest.raises(Killed):
        run(coloured(dies=killed_in), checkpoint)
    resumed, outcome = run(coloured(), checkpoint)
    assert outcome == expected
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last.ckpt"]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    with pytest.raises(Killed):
        run(coloured(dies=2), checkpoint)
    before = checkpoint.read_bytes()
    with pytest.raises(TrainingError, match=r"epoch 3: the loss is nan; lower lr \(0.02\)"):
        run(coloured(), checkpoint, loss=lambda outputs, batch: F.cross_entropy(outputs, batch["label"]) * torch.nan)
    assert checkpoint.read_bytes() == before


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    run(coloured(), checkpoint)
    with pytest.raises(TrainingError, match=r"another run: schedule\.lr is 0\.02 there, 0\.01 now\."):
        run(coloured(), checkpoint, dataclasses.replace(SCHEDULE, lr=0.01))
    with pytest.raises(TrainingError, match=r"another run: initial weights"):
        run(coloured(), checkpoint, network=nn.Sequential(ConvBlock(3, 4), nn.Flatten(), nn.Linear(256, 3)))
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    with pytest.raises(TrainingError, match="not a checkpoint of this loop"):
        run(coloured(), checkpoint)


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    """As on a disk that becomes full: a limit of the file size ends the write in the middle. PyTorch's writer then
    raises an error about file positions.
    """
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"done": 1}, {})
    before = path.read_bytes()
    with small_disk(1_000_000), pytest.raises(TrainingError) as raised:
        save_checkpoint(path, {"weight": torch.zeros(1_000_000)}, {})
    assert f"{path}: checkpoint cannot be written ([Errno 27] File too large)" in str(raised.value)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_boxes_of_a_handful_of_images_are_learnt() -> None:
    images = torch.randint(60, 90, (6, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    boxes = torch.zeros(6, 1, 4)
    for k in range(6):
        x, y = 4 + 6 * k, 30 - 4 * k
        boxes[k, 0] = torch.tensor([x, y, x + 20.0, y + 24.0])
        images[k, :, y : y + 24, x : x + 20] = 230
    torch.manual_seed(0)
    network = DetectorNet(1, (64, 64), channels=(8, 16, 16, 16, 16), blocks=(1, 1, 1, 1), neck=16)

    def score(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            rows = net(images / 255.0)
        best = rows[torch.arange(6), :, rows[:, 4].argmax(1)]
        found = torch.cat([best[:, :2] - best[:, 2:4] / 2, best[:, :2] + best[:, 2:4] / 2], dim=1)
        return {"iou": float(box_iou(found, boxes[:, 0]).diag().mean())}

    batches = FixedBatches({"image": images, "boxes": boxes, "classes": torch.zeros(6, 1, dtype=torch.int64)}, 6)
    loss, schedule = DetectionLoss((64, 64), (8, 16, 32)), Schedule(epochs=100, lr=0.003, ema=0.0)
    _, outcome = run(batches, schedule=schedule, loss=loss, score=score, network=network, main="iou")
    assert outcome.best["iou"] > 0.7
