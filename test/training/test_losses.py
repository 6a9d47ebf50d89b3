"""The losses on small cases: on the truth, on a teacher's outputs, and on both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multi_dnn_ros.models.networks import cells
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.losses import (
    ClassificationLoss,
    DetectionLoss,
    class_difference,
    distilled,
    lane_map_loss,
)
from multi_dnn_ros.training.samples import CROWD, IGNORED

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE, STRIDES = (64, 64), (8, 16, 32)
POINTS, SCALES = cells(*SIZE, STRIDES)


def outputs(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """(N, 4) x1, y1, x2, y2 and (N, C) -> (1, 4 + C, N)."""
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return torch.cat([centre, size, scores], dim=1).T[None]


def guess(score: float = 0.05, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Every cell predicts a box of two strides around itself."""
    half = SCALES[:, None]
    return torch.cat([POINTS - half, POINTS + half], dim=1), torch.full((len(POINTS), classes), score)


def batch(*rows: tuple[float, float, float, float, int]) -> dict[str, torch.Tensor]:
    table = torch.tensor(rows, dtype=torch.float32).reshape(1, -1, 5)
    return {"boxes": table[..., :4], "classes": table[..., 4].long()}


def loss() -> DetectionLoss:
    return DetectionLoss(SIZE, STRIDES)


def test_right_boxes_cost_less_than_wrong_ones() -> None:
    boxes, scores = guess(0.001)
    truth = batch((8, 8, 40, 40, 1))
    wrong = loss()(outputs(boxes, scores), truth)
    inside = ((POINTS > 8) & (POINTS < 40)).all(dim=1)
    boxes[inside] = torch.tensor([8.0, 8.0, 40.0, 40.0])
    owner, _, _ = loss().assign(boxes[None], scores[None], truth["boxes"], truth["classes"])
    scores[owner[0] == 0, 1] = 0.999
    right = loss()(outputs(boxes, scores), truth)
    assert float(right) < 0.2 * float(wrong)


@pytest.mark.parametrize("ignored", [IGNORED, CROWD, CROWD - 1])
def test_what_lies_in_an_ignored_box_costs_nothing(ignored: int) -> None:
    boxes, scores = guess(0.001)
    scores[0, 0] = 0.9  # cell 0 is at (4, 4)
    free = loss()(outputs(boxes, scores), batch((0, 0, 8, 8, ignored)))
    charged = loss()(outputs(boxes, scores), batch((0, 0, 8, 8, -1)))
    assert float(free) < 0.01 < float(charged)


@pytest.mark.parametrize("score", [0.3, 1.0])
@pytest.mark.parametrize("row", [(0, 0, 0, 0, -1), (8, 8, 40, 40, 1)])
def test_gradients_are_finite_without_objects_and_with_saturated_scores(score: float, row: tuple[int, ...]) -> None:
    raw = outputs(*guess(score)).requires_grad_()
    loss()(raw, batch(row)).backward()  # type: ignore[arg-type]
    assert raw.grad is not None
    assert torch.isfinite(raw.grad).all()
    assert float(raw.grad[:, 4:].sum()) > 0 or row[4] >= 0 or score == 1.0  # scores are pushed down


def test_gradients_of_parts_of_a_batch_add_up_to_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes: three images with one object each, two large and one small, and one image without objects."""
    torch.manual_seed(0)
    boxes, scores = guess(0.3)
    raw = torch.cat([outputs(boxes + torch.randn_like(boxes), scores)] * 4)
    rows = [(8, 8, 40, 40, 1), (0, 0, 60, 50, 0), (15, 15, 17, 17, 0), (0, 0, 0, 0, -1)]
    truth = {name: torch.cat([batch(row)[name] for row in rows]) for name in ("boxes", "classes")}

    def gradients(*parts: slice) -> torch.Tensor:
        own = raw.clone().requires_grad_()
        for part in parts:
            value = loss()(own[part], {name: tensor[part] for name, tensor in truth.items()})
            (value * len(own[part]) / len(own)).backward()
        assert own.grad is not None
        return own.grad

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(distributed, "total", lambda value: seen.append(value) or value)
    whole = gradients(slice(0, 4))
    split = slice(0, 3), slice(3, 4)
    assert not torch.allclose(gradients(*split), whole)  # if each part is normalized by itself
    torch.testing.assert_close(seen[1] + seen[2], seen[0])
    monkeypatch.setattr(distributed, "total", lambda value: seen[0])
    torch.testing.assert_close(gradients(*split), whole)


def test_lane_loss_orders_good_and_bad_masks() -> None:
    mask = torch.zeros(1, 1, 16, 16, dtype=torch.uint8)
    mask[..., 8] = 255
    good = (mask.float() / 255 - 0.5) * 20
    empty = torch.full_like(good, -10.0)
    values = [float(lane_map_loss(logits, {"mask": mask})) for logits in (good, torch.zeros_like(good), empty, -good)]
    assert values[0] < 0.05
    assert values[0] < values[1] < values[3]
    assert values[0] < values[2]


def test_a_teacher_alone_is_enough_and_equal_answers_cost_nothing() -> None:
    torch.manual_seed(0)
    teacher = nn.Conv2d(3, 6, 3).eval()
    batch = {"image": torch.rand(2, 3, 8, 8)}
    alone = distilled(None, teacher, 0.5, False, "fp32")
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
    found = distilled(truth, teacher, 0.75, True, "fp32")(outputs, batch)
    assert float(found) == pytest.approx(float(expected))
