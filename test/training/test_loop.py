"""The training loop learns, resumes to the same weights, and never damages the last good checkpoint."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fixed_batches import FixedBatches
from small_disk import small_disk
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

from multi_dnn_ros.models.networks import ConvBlock, DetectorNet
from multi_dnn_ros.training import checkpoint as checkpoints
from multi_dnn_ros.training.loop import Schedule, TrainingError, train
from multi_dnn_ros.training.losses import DetectionLoss

Batch = dict[str, Tensor]


pytestmark = pytest.mark.usefixtures("one_thread")


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        ConvBlock(3, 8, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 3)
    )


def coloured(seed: int = 0) -> FixedBatches:
    """Images of three colours, which are the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(48) % 3
    image = torch.randint(0, 90, (48, 3, 8, 8), generator=generator, dtype=torch.uint8)
    image[torch.arange(48), labels] += 120
    return FixedBatches({"image": image, "label": labels}, 8, seed=1)


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs, batch["label"])


def accuracy(network: nn.Module) -> dict[str, float]:
    data = coloured()
    with torch.no_grad():
        right = network(data.arrays["image"].float() / 255.0).argmax(1) == data.arrays["label"]
    return {"top1": float(right.float().mean())}


SCHEDULE = Schedule(epochs=6, lr=0.02, ema=0.9, seed=3)


def run(
    batches: object, checkpoint: Path | None = None, schedule: Schedule = SCHEDULE
) -> tuple[nn.Module, list[dict[str, float]]]:
    network = classifier()
    outcome = train(
        network,
        batches,
        cross_entropy,
        accuracy,
        schedule,
        main="top1",
        checkpoint=checkpoint,  # type: ignore[arg-type]
    )
    return network, outcome.history


class Killed(BaseException):
    """Ends the run in the middle of an epoch, like a signal."""


class DiesAt:
    def __init__(self, inner: FixedBatches, epoch: int) -> None:
        self.inner = inner
        self.dies = epoch
        self.batch_size = inner.batch_size

    def __len__(self) -> int:
        return len(self.inner)

    def epoch(self, number: int) -> Iterator[Batch]:
        for k, batch in enumerate(self.inner.epoch(number)):
            if number == self.dies and k == 3:
                raise Killed
            yield batch


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_it_learns_to_classify(optimizer: str) -> None:
    schedule = dataclasses.replace(SCHEDULE, optimizer=optimizer, lr=0.02 if optimizer == "adamw" else 0.2)
    network, history = run(coloured(), schedule=schedule)
    assert accuracy(network)["top1"] > 0.9
    assert history[-1]["loss"] < history[0]["loss"]
    assert not network.training


def test_what_training_makes_worse_is_not_kept() -> None:
    network, _ = run(coloured())
    before = copy.deepcopy(network.state_dict())
    schedule = dataclasses.replace(SCHEDULE, epochs=2, optimizer="sgd", lr=50.0, ema=0.0, precision="fp32")
    outcome = train(network, coloured(), cross_entropy, accuracy, schedule, main="top1")  # type: ignore[arg-type]
    assert outcome.epoch == -1
    assert outcome.history[-1]["top1"] < outcome.best["top1"] == accuracy(network)["top1"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class Overflowing(FixedBatches):
    """In the second epoch the variance of the images exceeds float32; normalized by it they are 0, and so the loss is
    finite.
    """

    def epoch(self, number: int) -> Iterator[Batch]:
        for batch in super().epoch(number):
            yield {**batch, "image": batch["image"] * (1e25 if number == 1 else 1.0)}


@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_statistics_that_are_not_finite_end_the_training(ema: float) -> None:
    schedule = dataclasses.replace(SCHEDULE, epochs=4, ema=ema, precision="fp32")
    with pytest.raises(TrainingError, match=r"epoch 2, lr 0\.02: 0\.1\.running_var of the network is not finite"):
        run(Overflowing(coloured().arrays, 8, seed=1), schedule=schedule)


@pytest.mark.parametrize("killed_in", [0, 5])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, killed_in: int) -> None:
    whole, whole_history = run(coloured())
    checkpoint = tmp_path / "run" / "last.ckpt"
    with pytest.raises(Killed):
        run(DiesAt(coloured(), killed_in), checkpoint)
    resumed, history = run(coloured(), checkpoint)
    assert history == whole_history
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last.ckpt"]


def test_the_best_epoch_is_kept() -> None:
    values = iter([0.1, 0.2, 0.9, 0.5, 0.4, 0.3, 0.1])  # of the initial weights, then of each epoch
    kept: list[dict[str, Tensor]] = []

    def score(network: nn.Module) -> dict[str, float]:
        kept.append({name: value.clone() for name, value in network.state_dict().items()})
        return {"top1": next(values)}

    network = classifier()
    outcome = train(network, coloured(), cross_entropy, score, SCHEDULE, main="top1")
    assert (outcome.epoch, outcome.best) == (1, {"top1": 0.9})
    assert len(outcome.history) == SCHEDULE.epochs
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in kept[2].items())


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    with pytest.raises(Killed):
        run(DiesAt(coloured(), 2), checkpoint)
    before = checkpoint.read_bytes()

    def broken(outputs: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(outputs, batch) * float("nan")

    with pytest.raises(TrainingError, match=r"epoch 3: the loss is nan; lower lr \(0.02\)"):
        train(classifier(), coloured(), broken, accuracy, SCHEDULE, main="top1", checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    run(coloured(), checkpoint)
    with pytest.raises(TrainingError, match=r"another run: schedule\.lr is 0\.02 there, 0\.01 now\."):
        run(coloured(), checkpoint, dataclasses.replace(SCHEDULE, lr=0.01))
    other = nn.Sequential(ConvBlock(3, 4), nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(TrainingError, match=r"another run: .*weights"):
        train(other, coloured(), cross_entropy, accuracy, SCHEDULE, main="top1", checkpoint=checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    with pytest.raises(TrainingError, match="not a checkpoint of this loop"):
        run(coloured(), checkpoint)


def test_boxes_of_a_handful_of_images_are_learnt() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(60, 90, (6, 3, 64, 64), generator=generator, dtype=torch.uint8)
    boxes = torch.zeros(6, 1, 4)
    for k in range(6):
        x, y = 4 + 6 * k, 30 - 4 * k
        boxes[k, 0] = torch.tensor([x, y, x + 20.0, y + 24.0])
        images[k, :, y : y + 24, x : x + 20] = 230
    classes = torch.zeros(6, 1, dtype=torch.int64)
    torch.manual_seed(0)
    network = DetectorNet(1, (64, 64), channels=(8, 16, 16, 16, 16), blocks=(1, 1, 1, 1), neck=16)

    def score(net: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            rows = net(images.float() / 255.0)
        best = rows[torch.arange(6), :, rows[:, 4].argmax(1)]
        found = torch.cat([best[:, :2] - best[:, 2:4] / 2, best[:, :2] + best[:, 2:4] / 2], dim=1)
        return {"iou": float(box_iou(found, boxes[:, 0]).diag().mean())}

    batches = FixedBatches({"image": images, "boxes": boxes, "classes": classes}, 6, seed=0)
    schedule = Schedule(epochs=100, lr=0.003, ema=0.0)
    outcome = train(network, batches, DetectionLoss((64, 64), (8, 16, 32)), score, schedule, main="iou")
    assert outcome.best["iou"] > 0.7


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    """As on a disk that becomes full: a limit of the file size ends the write in the middle. PyTorch's writer then
    raises an error about file positions.
    """
    path = tmp_path / "checkpoint.pt"
    checkpoints.save(path, {"done": 1}, {})
    before = path.read_bytes()
    with small_disk(1_000_000), pytest.raises(TrainingError) as raised:
        checkpoints.save(path, {"weight": torch.zeros(1_000_000)}, {})
    assert f"{path}: checkpoint cannot be written ([Errno 27] File too large)" in str(raised.value)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
