"""Training on a GPU: captured passes give the same weights as launching kernel by kernel. CPU twin: test/training."""

from __future__ import annotations

import copy
import gc
import logging

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multi_dnn_ros.models.networks import DetectorNet
from multi_dnn_ros.training import loop
from multi_dnn_ros.training.batches import ArrayBatches, Inputs
from multi_dnn_ros.training.graph_replay import capture_passes, capture_teacher
from multi_dnn_ros.training.loop import Loss, Schedule, train
from multi_dnn_ros.training.losses import DetectionLoss
from multi_dnn_ros.training.precision import autocast

GPU = torch.device("cuda:0")


class Branches(nn.Module):
    """Batch normalization, dropout where asked for, and weights that nothing depends on."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
            nn.Dropout(dropout), nn.Linear(64, 3),
        )  # fmt: skip
        self.unused = nn.Linear(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.body(image)
        return result


class Looks(Branches):
    """At a value, which a capture cannot."""

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.body(image)
        return result if float(result.sum()) > 0 else result * 2


def batches(inputs: Inputs | None = None) -> ArrayBatches:
    labels = torch.arange(96) % 3
    image = torch.randint(0, 90, (96, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image[torch.arange(96), labels] += 120
    return ArrayBatches({"image": image.to(GPU), "label": labels.to(GPU)}, 16, seed=1, inputs=inputs)


def trained(network: nn.Module, precision: str, inputs: Inputs | None = None) -> tuple[dict[str, Tensor], list[float]]:
    network = network.to(GPU).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def accuracy(scored: nn.Module) -> dict[str, float]:
        data = batches().arrays
        with torch.no_grad():
            right = scored(data["image"].float() / 255.0).argmax(1) == data["label"]
        return {"top1": float(right.float().mean())}

    outcome = train(
        network, batches(inputs), lambda outputs, batch: F.cross_entropy(outputs.float(), batch["label"]), accuracy,
        Schedule(4, 0.02, ema=0.9, precision=precision, seed=3), main="top1", progress=False,
    )  # fmt: skip
    return {name: tensor.cpu() for name, tensor in network.state_dict().items()}, [r["loss"] for r in outcome.history]


#: Two epochs on smaller images, then two on the others.
GROWING = Inputs(small=(6, 6), small_epochs=2)


@pytest.mark.parametrize(
    ("precision", "tolerance", "inputs"), [("fp32", 1e-3, None), ("bf16", 5e-2, None), ("fp32", 1e-3, GROWING)]
)
def test_captured_passes_train_to_the_same_weights(
    precision: str,
    tolerance: float,
    inputs: Inputs | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    captured = []
    real = loop.capture_passes
    monkeypatch.setattr(loop, "capture_passes", lambda *given: captured.append(real(*given)) or captured[-1])
    weights, losses = trained(Branches(0.0), precision, inputs)
    assert len(captured) == (1 if inputs is None else 2)
    assert all(type(passes) is not Branches for passes in captured)
    assert not caplog.records
    monkeypatch.setattr(loop, "capture_passes", lambda network, image, precision: network)
    expected, expected_losses = trained(Branches(0.0), precision, inputs)
    assert losses == pytest.approx(expected_losses, rel=tolerance)
    assert losses[-1] < losses[0] / 2
    for name, tensor in weights.items():
        assert torch.allclose(tensor.float(), expected[name].float(), rtol=10 * tolerance, atol=tolerance), name


class Named(nn.Module):
    """Its outputs have names, as those of torchvision's detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Branches(0.0)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        scores = self.network(image)
        return {"scores": scores, "boxes": scores * 2.0}


@pytest.mark.parametrize("kind", ["named", "detector"])
def test_captured_passes_have_the_gradients_of_any_output(kind: str) -> None:
    torch.manual_seed(0)
    loss: Loss
    if kind == "named":
        network: nn.Module = Named()
        batch = {"image": torch.rand(4, 3, 16, 16, device=GPU), "label": torch.arange(4, device=GPU) % 3}
        loss = lambda out, batch: F.cross_entropy(out["scores"] + out["boxes"], batch["label"])  # noqa: E731
    else:
        network = DetectorNet(1, (64, 64), channels=(8, 16, 16, 16, 16), blocks=(1, 1, 1, 1), neck=16)
        boxes = torch.tensor([[[8.0, 8.0, 40.0, 40.0]]], device=GPU).repeat(4, 1, 1)
        classes = torch.zeros(4, 1, dtype=torch.int64, device=GPU)
        batch = {"image": torch.rand(4, 3, 64, 64, device=GPU), "boxes": boxes, "classes": classes}
        loss = DetectionLoss((64, 64), DetectorNet.STRIDES)
    network = network.to(GPU).train()
    twin = copy.deepcopy(network)
    captured = capture_passes(network, batch["image"], "fp32")
    assert captured is not network
    for _ in range(3):
        loss(captured(batch["image"]), batch).backward()
        loss(twin(batch["image"]), batch).backward()
        for (name, own), other in zip(network.named_parameters(), twin.parameters(), strict=True):
            assert (own.grad is None) == (other.grad is None), name
            if own.grad is not None:
                assert torch.allclose(own.grad, other.grad, rtol=1e-2, atol=1e-4), name
        network.zero_grad(set_to_none=True)
        twin.zero_grad(set_to_none=True)


def test_dropout_draws_again_in_every_step_and_a_seed_repeats_the_run() -> None:
    first, losses = trained(Branches(0.5), "bf16")
    again, same = trained(Branches(0.5), "bf16")
    assert losses == pytest.approx(same, rel=1e-3)
    assert len({round(value, 6) for value in losses}) == len(losses)
    assert all(torch.allclose(first[name].float(), again[name].float(), atol=1e-2) for name in first)


def test_capturing_draws_no_numbers_from_training() -> None:
    """So that a run that goes on from a checkpoint, and captures there, draws what an uninterrupted one drew."""
    network = Branches(0.5).to(GPU).train()
    torch.manual_seed(5)
    expected = torch.rand(3, device=GPU)
    torch.manual_seed(5)
    assert capture_passes(network, torch.rand(4, 3, 8, 8).to(GPU), "fp32") is not network
    assert torch.equal(torch.rand(3, device=GPU), expected)


def test_a_network_that_looks_at_values_trains_uncaptured(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _, losses = trained(Looks(0.0), "fp32")
    assert losses[-1] < losses[0]
    assert "cannot be captured" in caplog.text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_teacher_answers_the_same(precision: str) -> None:
    teacher = Branches(0.5).to(GPU).eval()
    images = [batch["image"] for batch in batches().epoch(0)]
    answer = capture_teacher(teacher, images[0], precision)
    for image in images:
        with torch.no_grad(), autocast(GPU, precision):
            assert torch.allclose(answer(image), teacher(image), rtol=1e-2, atol=1e-2)


def test_the_memory_of_captured_passes_is_given_back() -> None:
    def held() -> int:
        trained(Branches(0.0), "bf16")
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream that ever needed it
        return torch.cuda.memory_allocated()

    before = held()
    assert max(held(), held()) <= before + 2**20
