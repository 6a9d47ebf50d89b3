"""Networks of the references' own packages with random weights, exported by them and compared with their own results.

Needs packages that this one does not: ultralytics, transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import Model, Row
from torch import nn

from reference_decoding import Candidate  # isort: skip

_SIZE = 320
#: Factor of the weights of heads.
_SPREAD = 6.0


def vary(network: nn.Module, seed: int) -> None:
    """Give every layer random statistics, so that scores and boxes differ from place to place.

    With the initial weights of a package they are nearly the same everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator) * 0.2)
            part.running_var.copy_(torch.rand(part.running_var.shape, generator=generator) * 0.5 + 0.2)
        if isinstance(part, nn.Conv2d) and part.bias is not None and part.bias.requires_grad:
            with torch.no_grad():
                part.bias.add_(torch.randn(part.bias.shape, generator=generator) * 0.5)


def _listed(boxes: torch.Tensor) -> list[Candidate]:
    """Rows x1, y1, x2, y2, score, class."""
    return [(*row[:5], int(row[5])) for row in boxes.tolist()]


def _ultralytics(name: str, opset: int) -> Callable[[Path, Path], Model]:
    def prepare(weights: Path, scratch: Path) -> Model:
        from ultralytics import RTDETR, YOLO
        from ultralytics.utils.nms import non_max_suppression

        torch.manual_seed(0)
        made: Any = RTDETR(f"{name}.yaml") if "rtdetr" in name else YOLO(f"{name}.yaml", verbose=False)
        vary(made.model, 1)
        network = made.model.eval()
        made.ckpt_path = str(scratch / f"{name}.pt")
        network.pt_path = made.ckpt_path  # the exporter writes beside it
        file = made.export(format="onnx", imgsz=_SIZE, opset=opset, simplify=False, verbose=False, device="cpu")

        @torch.no_grad()
        def boxes(image: np.ndarray) -> Sequence[Candidate]:
            output = network(torch.from_numpy(image))
            while isinstance(output, (tuple, list)):  # the first is what the others are made from
                output = output[0]
            if "rtdetr" in name:  # as RTDETRPredictor: the best class of each query, no suppression
                rows = output[0]
                best, number = rows[:, 4:].max(dim=1)
                center, half = rows[:, :2] * _SIZE, rows[:, 2:4] * (_SIZE / 2)
                return _listed(torch.cat([center - half, center + half, best[:, None], number[:, None]], 1))
            if output.shape[-1] == 6:  # end to end
                return _listed(output[0])
            found = non_max_suppression(output, conf_thres=_lowest(output), iou_thres=0.5, max_det=100, max_nms=4096,
                                        nc=80)  # fmt: skip
            return _listed(found[0][:, :6])

        return Model(str(file), {}, boxes, suppress=False)

    return prepare


def _lowest(output: torch.Tensor) -> float:
    """A threshold far below the one of the comparison."""
    best = output[0, 4:84].amax(dim=0)
    return float(best.topk(min(1500, len(best))).values[-1])


def _hugging_face(make: Callable[[], tuple[nn.Module, bool]]) -> Callable[[Path, Path], Model]:
    """make: the network, and whether its scores are those of a softmax."""

    def prepare(weights: Path, scratch: Path) -> Model:
        torch.manual_seed(0)
        network, softmax = make()
        network.eval()
        vary(network, 2)
        _spread(network)
        file = scratch / f"{type(network).__name__}.onnx"
        export_detr(network, file)

        @torch.no_grad()
        def boxes(image: np.ndarray) -> Sequence[Candidate]:
            from types import SimpleNamespace

            from transformers import DetrImageProcessor, RTDetrImageProcessor

            found = network(pixel_values=torch.from_numpy(image))
            plain = SimpleNamespace(logits=found.logits, pred_boxes=found.pred_boxes)
            processor = (DetrImageProcessor if softmax else RTDetrImageProcessor)()
            (kept,) = processor.post_process_object_detection(
                plain, threshold=0.0, target_sizes=torch.tensor([[_SIZE, _SIZE]])
            )
            rows = [kept["boxes"], kept["scores"][:, None], kept["labels"][:, None].float()]
            return _listed(torch.cat(rows, 1))

        return Model(str(file), {"labels": ["coco80"]}, boxes, suppress=False)

    return prepare


@torch.no_grad()
def _spread(network: nn.Module) -> None:
    """Larger weights of the heads, so that the scores of places differ by more than rounding: TopK selects by them."""
    for name, part in network.named_modules():
        if isinstance(part, nn.Linear) and any(head in name for head in ("class", "score", "bbox")):
            part.weight.mul_(_SPREAD)


class _Outputs(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.network(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


def export_detr(network: nn.Module, file: Path) -> None:
    """Write logits and boxes of a network of Hugging Face."""
    torch.onnx.export(
        _Outputs(network), (torch.zeros(1, 3, _SIZE, _SIZE),), str(file), dynamo=False, opset_version=17,
        input_names=["pixel_values"], output_names=["logits", "pred_boxes"],
    )  # fmt: skip


def _backbone() -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic",
                        out_features=["stage2", "stage3", "stage4"])  # fmt: skip


def _detr() -> tuple[nn.Module, bool]:
    from transformers import DetrConfig, DetrForObjectDetection

    config = DetrConfig(use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=64,
                        backbone_config=_backbone(), encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128,
                        decoder_ffn_dim=128, num_queries=100, num_labels=80)  # fmt: skip
    return DetrForObjectDetection(config), True


def _rtdetr() -> tuple[nn.Module, bool]:
    from transformers import RTDetrConfig, RTDetrForObjectDetection

    return RTDetrForObjectDetection(RTDetrConfig(num_labels=80, decoder_layers=2)), False


def _dfine() -> tuple[nn.Module, bool]:
    from transformers import DFineConfig, DFineForObjectDetection

    return DFineForObjectDetection(DFineConfig(num_labels=80, decoder_layers=2)), False


_ULTRALYTICS = (
    ("yolov8n", 19), ("yolov8n-seg", 20), ("yolov9t", 17), ("yolov10n", 18), ("yolo11n", 20), ("yolo12n", 22),
    ("yolo26n", 20), ("yolov5n", 11), ("yolov3-tiny", 13), ("rtdetr-l", 19),
)  # fmt: skip
ROWS = (
    *(
        Row(name, f"ultralytics, {name}.yaml", "AGPL-3.0", False, "the package's own network and suppression",
            _ultralytics(name, opset))
        for name, opset in _ULTRALYTICS
    ),
    *(
        Row(name, f"transformers, {name}", "Apache-2.0", False, "the package's own network and post-processing",
            _hugging_face(make))
        for name, make in (("DETR", _detr), ("RT-DETR", _rtdetr), ("D-FINE", _dfine))
    ),
)  # fmt: skip
