"""The losses on small cases: on the truth, on a teacher's outputs, and on both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multi_dnn_ros.models.networks import cells
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.losses import ClassificationLoss, DetectionLoss, class_difference, distilled, lane_map_loss
from multi_dnn_ros.training.samples import CROWD, IGNORED

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE, STRIDES = (64, 64), (8, 16, 32)
POINTS, SCALES = cells(*SIZE, STRIDES)


def outputs(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """(N, 4) x1, y1, x2, y2 and (N, C) -> (1, 4 + C, N)."""
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return torch.cat([centre, size, scores], dim=1).T[None]


def guess(score: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """Every cell predicts a box of two strides around itself, of two classes."""
    half = SCALES[:, None]
    return torch.cat([POINTS - half, POINTS + half], dim=1), torch.full((len(POINTS), 2), score)


def batch(*rows: tuple[float, ...]) -> dict[str, torch.Tensor]:
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 1, 5)
    return {"boxes": table[..., :4], "classes": table[..., 4].long()}


def loss() -> DetectionLoss:
    return DetectionLoss(SIZE, STRIDES)


@pytest.mark.parametrize("ignored", [IGNORED, CROWD, CROWD - 1])
def test_what_lies_in_an_ignored_box_costs_nothing(ignored: int) -> None:
    boxes, scores = guess(0.001)
    scores[0, 0] = 0.9  # cell 0 is at (4, 4)
    free = loss()(outputs(boxes, scores), batch((0, 0, 8, 8, ignored)))
    charged = loss()(outputs(boxes, scores), batch((0, 0, 8, 8, -1)))
    assert float(free) < 0.01 < float(charged)


def test_gradients_of_parts_of_a_batch_add_up_to_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: three images with one object each, two large and one small, and one image without objects."""
    torch.manual_seed(0)
    boxes, scores = guess(0.3)
    raw = torch.cat([outputs(boxes + torch.randn_like(boxes), scores)] * 4)
    truth = batch((8, 8, 40, 40, 1), (0, 0, 60, 50, 0), (15, 15, 17, 17, 0), (0, 0, 0, 0, -1))

    def gradients(*parts: slice) -> torch.Tensor:
        own = raw.clone().requires_grad_()
        for part in parts:
            value = loss()(own[part], {name: tensor[part] for name, tensor in truth.items()})
            (value * len(own[part]) / len(own)).backward()
        assert own.grad is not None
        return own.grad

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(distributed, "total", lambda value: seen.append(value) or value)
    whole, split = gradients(slice(0, 4)), (slice(0, 3), slice(3, 4))
    assert not torch.allclose(gradients(*split), whole)  # if each part is normalized by itself
    torch.testing.assert_close(seen[1] + seen[2], seen[0])
    monkeypatch.setattr(distributed, "total", lambda value: seen[0])
    torch.testing.assert_close(gradients(*split), whole)


def test_lane_loss_orders_good_and_bad_masks() -> None:
    mask = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
    mask[..., 8] = 255
    good = (mask.float() / 255 - 0.5) * 20
    empty, unsure = torch.full_like(good, -10.0), torch.zeros_like(good)
    best, middle, none, worst = (float(lane_map_loss(each, {"mask": mask})) for each in (good, unsure, empty, -good))
    assert best < 0.05
    assert best < middle < worst
    assert best < none
    softmax = torch.cat([torch.zeros_like(good), good], dim=1)  # of background and lane
    assert float(lane_map_loss(softmax, {"mask": mask}, lane_classes=(1,))) == pytest.approx(best)


def test_a_teacher_alone_is_enough_and_its_share_counts() -> None:
    torch.manual_seed(0)
    teacher, images = nn.Conv2d(3, 6, 3).eval(), {"image": torch.rand(2, 3, 8, 8)}
    alone = distilled(None, teacher, 0.5, False, "fp32")
    assert float(alone(teacher(images["image"]), images)) == 0.0
    assert float(alone(teacher(images["image"]) + 1.0, images)) > 0.1
    teacher, truth = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval(), ClassificationLoss()
    labelled, found = {"image": torch.rand(4, 3, 2, 2), "label": torch.tensor([0, 1, 2, 0])}, torch.randn(4, 3)
    both = distilled(truth, teacher, 0.75, True, "fp32")(found, labelled)
    torch.testing.assert_close(
        both, 0.75 * class_difference(found, teacher(labelled["image"])) + 0.25 * truth(found, labelled)
    )
