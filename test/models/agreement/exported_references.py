"""Networks of other packages with random weights, exported by these packages and compared with their own results.

Needs packages that multi_dnn_ros does not need: ultralytics and transformers.
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
#: Networks that get random statistics, see vary_randomly.
_MAGNIFYING = ("yolov9t", "yolo12n")
#: Factor of the weights of heads.
_SPREAD = 2.0
#: Standard deviation of the outputs of predicting convolutions, on the image that the statistics come from.
_HEAD_SPREAD = 0.04


@torch.no_grad()
def vary(network: nn.Module, run: Callable[[torch.Tensor], Any], seed: int) -> None:
    """Give the layers of a network the statistics of an image, and its heads larger weights, so that scores and boxes
    differ between positions by more than rounding, which would otherwise decide what TopK and suppression select.

    With the initial weights of a package, scores and boxes are nearly the same everywhere. run: passes an image
    (1, 3, h, w) through the network. Afterwards the network is in eval mode.
    """
    generator = torch.Generator().manual_seed(seed)
    network.eval()
    normalized = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    before = [part.momentum for part in normalized]
    for part in normalized:
        part.momentum = 1.0
        part.train()
    image = _like_a_photo(generator)
    run(image)
    for part, momentum in zip(normalized, before, strict=True):
        part.momentum = momentum
        part.eval()
    predicting = [part for part in network.modules() if isinstance(part, nn.Conv2d) and part.bias is not None]
    hooks = [part.register_forward_hook(_with_little_spread) for part in predicting if part.bias.requires_grad]
    run(image)
    for hook in hooks:
        hook.remove()
    for name, part in network.named_modules():
        if isinstance(part, nn.Linear) and any(head in name for head in ("class", "score", "bbox")):
            part.weight.mul_(_SPREAD)
        elif isinstance(part, nn.Embedding):  # the queries of DETR
            part.weight.mul_(_SPREAD * 30)


@torch.no_grad()
def vary_randomly(network: nn.Module, seed: int) -> None:
    """As :func:`vary`, with random statistics: for networks that magnify rounding with those of an image."""
    generator = torch.Generator().manual_seed(seed)
    for part in network.eval().modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator) * 0.2)
            part.running_var.copy_(torch.rand(part.running_var.shape, generator=generator) * 0.5 + 0.2)
        if isinstance(part, nn.Conv2d) and part.bias is not None and part.bias.requires_grad:
            part.bias.add_(torch.randn(part.bias.shape, generator=generator) * 0.5)


def _with_little_spread(part: nn.Conv2d, given: Any, output: torch.Tensor) -> torch.Tensor:
    """Forward hook: change the weights so that the outputs of each channel have the standard deviation
    _HEAD_SPREAD, so that few scores of photos are rounded to 1.
    """
    factor = _HEAD_SPREAD / output.std(dim=(0, 2, 3)).clamp(min=1e-6)
    part.weight.mul_(factor[:, None, None, None])
    assert part.bias is not None
    rest: torch.Tensor = part.bias[:, None, None]
    return (output - rest) * factor[:, None, None] + rest


def _like_a_photo(generator: torch.Generator) -> torch.Tensor:
    """Random (1, 3, h, w), 0..1, whose contrast falls with the frequency."""
    image = torch.zeros(1, 3, _SIZE, _SIZE)
    for cells in (5, 10, 20, 40, 80, 160):
        part = torch.randn(1, 3, cells, cells, generator=generator) / cells
        image += nn.functional.interpolate(part, size=(_SIZE, _SIZE), mode="bilinear", align_corners=False)
    return (image - image.amin()) / (image.amax() - image.amin())


def _listed(boxes: torch.Tensor) -> list[Candidate]:
    """Candidates from rows x1, y1, x2, y2, score, class."""
    return [(*row[:5], int(row[5])) for row in boxes.tolist()]


def _ultralytics(name: str, opset: int) -> Callable[[Path, Path], Model]:
    def prepare(weights: Path, scratch: Path) -> Model:
        from ultralytics import RTDETR, YOLO
        from ultralytics.utils.nms import non_max_suppression

        torch.manual_seed(0)
        made: Any = RTDETR(f"{name}.yaml") if "rtdetr" in name else YOLO(f"{name}.yaml", verbose=False)
        network = made.model
        if name in _MAGNIFYING:
            vary_randomly(network, 1)
        else:
            vary(network, network, 1)
        made.ckpt_path = str(scratch / f"{name}.pt")
        network.pt_path = made.ckpt_path  # the exporter writes beside it
        file = made.export(format="onnx", imgsz=_SIZE, opset=opset, simplify=False, verbose=False, device="cpu")

        @torch.no_grad()
        def boxes(image: np.ndarray) -> Sequence[Candidate]:
            output = network(torch.from_numpy(image))
            while isinstance(output, (tuple, list)):  # the first is what the others are computed from
                output = output[0]
            if "rtdetr" in name:  # as RTDETRPredictor: selected by the network, boxes relative to the input
                rows = output[0]
                center, half = rows[:, :2] * _SIZE, rows[:, 2:4] * (_SIZE / 2)
                return _listed(torch.cat([center - half, center + half, rows[:, 4:]], 1))
            if output.shape[-1] == 6:  # end to end
                return _listed(output[0])
            found = non_max_suppression(output, conf_thres=0.0, iou_thres=0.5, max_det=100, max_nms=1000, nc=80)
            return _listed(found[0][:, :6])

        return Model(str(file), {}, boxes, suppress=False)

    return prepare


def _hugging_face(make: Callable[[], tuple[nn.Module, bool]]) -> Callable[[Path, Path], Model]:
    """make: returns the network, and whether its scores are those of a softmax."""

    def prepare(weights: Path, scratch: Path) -> Model:
        torch.manual_seed(0)
        network, softmax = make()
        vary(network, lambda image: network(pixel_values=image), 2)
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
        _Outputs(network).eval(), (torch.zeros(1, 3, _SIZE, _SIZE),), str(file), dynamo=False, opset_version=17,
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
