"""The loss on the truth, on a teacher's outputs, and on both."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import detection

from multi_dnn_ros.decoders.anchor import AnchorDecoder
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.distillation import Distilled, class_difference
from multi_dnn_ros.training.losses import ClassificationLoss, TorchvisionLoss
from multi_dnn_ros.training.trainable import make_trainable

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "builder",
    [
        "ssdlite320_mobilenet_v3_large",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("retinanet_resnet50_fpn", "fcos_resnet50_fpn")),
    ],
)
def test_the_loss_of_torchvision_s_detectors_is_their_own(builder: str) -> None:
    size = 320 if builder.startswith("ssd") else 128
    sizes = {} if builder.startswith("ssd") else {"min_size": size, "max_size": size}
    torch.manual_seed(0)
    detector = getattr(detection, builder)(weights=None, weights_backbone=None, num_classes=4, **sizes)
    for part in detector.modules():
        if isinstance(part, (nn.BatchNorm2d, nn.Dropout)):
            part.momentum = 0.0  # so that both passes compute the same result
    source = load_network(f"torchvision:{builder}", weights="random", num_classes=4)
    source.module.load_state_dict(detector.state_dict())
    student = make_trainable(source, builder, size=(size, size), labels=("no", "a", "b", "c"))
    assert isinstance(student.loss, TorchvisionLoss)
    assert isinstance(student.decoder, AnchorDecoder)
    image = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    boxes = torch.tensor([[[10.0, 12.0, 70.0, 90.0], [30.0, 30.0, 30.0, 60.0]], [[0.0, 0.0, 0.0, 0.0]] * 2])
    classes = torch.tensor([[2, 1], [-1, -1]])
    detector.eval()
    student.network.eval()
    with torch.no_grad():
        found = student.loss(student.network(student.inputs(image)), {"boxes": boxes, "classes": classes})
    # torchvision computes losses in training mode only: set on the detector, not on its layers.
    detector.training = True
    targets = [{"boxes": boxes[0, :1], "labels": classes[0, :1]}, {"boxes": boxes[1, :0], "labels": classes[1, :0]}]
    with torch.no_grad():
        expected = sum(detector(list(image), targets).values())
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_a_teacher_alone_is_enough_and_equal_answers_cost_nothing() -> None:
    torch.manual_seed(0)
    teacher = nn.Conv2d(3, 6, 3).eval()
    batch = {"image": torch.rand(2, 3, 8, 8)}
    alone = Distilled(None, teacher, 0.5, False, "fp32")
    assert float(alone(teacher(batch["image"]), batch)) == 0.0
    assert float(alone(teacher(batch["image"]) + 1.0, batch)) > 0.1
    logits = torch.randn(4, 5)
    assert float(class_difference(logits, logits)) == pytest.approx(0.0, abs=1e-6)


def test_the_teacher_s_share_counts() -> None:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    batch = {"image": torch.rand(4, 3, 2, 2), "label": torch.tensor([0, 1, 2, 0])}
    outputs = torch.randn(4, 3)
    truth = ClassificationLoss()
    expected = 0.75 * class_difference(outputs, teacher(batch["image"])) + 0.25 * truth(outputs, batch)
    found = Distilled(truth, teacher, 0.75, True, "fp32")(outputs, batch)
    assert float(found) == pytest.approx(float(expected))
