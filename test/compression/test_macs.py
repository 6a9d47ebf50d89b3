"""MACs of attention, against counts by hand: by `cost`, and operation by operation in a traced graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models import vit_b_16

from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.graph.operations import Counts, counter, total
from multi_dnn_ros.graph.trace import trace


def vision_transformer_macs(tokens: int, width: int, depth: int, mlp: int, patch: int, classes: int) -> int:
    """Dosovitskiy et al. 2021: patches (all tokens but one), then blocks of attention and two layers, then classes."""
    projections = tokens * width * (3 * width + width)
    products = 2 * tokens * tokens * width  # queries by keys, and their weights by values
    block = projections + products + 2 * tokens * width * mlp
    return (tokens - 1) * width * 3 * patch * patch + depth * block + width * classes


def detr_macs(pixels: int, queries: int, width: int, mlp: int) -> int:
    """One encoder and one decoder layer of Carion et al. 2020."""

    def attention(own: int, others: int) -> int:
        return (2 * own + 2 * others) * width * width + 2 * own * others * width

    encoder = attention(pixels, pixels) + 2 * pixels * width * mlp
    decoder = attention(queries, queries) + attention(queries, pixels) + 2 * queries * width * mlp
    return encoder + decoder


class SmallDetr(nn.Module):
    """The transformer of DETR, with one layer of each kind."""

    def __init__(self, width: int, heads: int, mlp: int, queries: int) -> None:
        super().__init__()
        self.transformer = nn.Transformer(width, heads, 1, 1, mlp, batch_first=True)
        self.queries = nn.Parameter(torch.zeros(1, queries, width))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.transformer(features, self.queries)
        return found


def traced_counts(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Counts:
    graph = trace(network, inputs)
    describe = counter(graph)
    return total(describe(node).counts for node in graph.graph.nodes if node.op == "call_function")


def test_vit_b_16() -> None:
    expected = vision_transformer_macs(197, 768, 12, 3072, 16, 1000)
    assert expected == pytest.approx(17.6e9, rel=0.01)  # as published
    with torch.device("meta"):
        network = vit_b_16().eval()
    assert cost(network, (torch.zeros(1, 3, 224, 224, device="meta"),)).macs == expected


def test_a_vision_transformer_operation_by_operation() -> None:
    from torchvision.models.vision_transformer import VisionTransformer

    network = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5).eval()
    inputs = (torch.zeros(1, 3, 32, 32),)
    expected = vision_transformer_macs(17, 32, 2, 64, 8, 5)
    assert cost(network, inputs).macs == expected
    counted = traced_counts(network, inputs)
    assert counted.macs == expected
    assert counted.bytes_read >= 4 * sum(weight.numel() for weight in network.parameters() if weight.ndim > 1)


def test_detr() -> None:
    network = SmallDetr(32, 4, 64, 10).eval()
    inputs = (torch.zeros(1, 35, 32),)
    expected = detr_macs(35, 10, 32, 64)
    assert cost(network, inputs).macs == expected
    assert traced_counts(network, inputs).macs == expected
