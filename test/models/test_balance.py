"""Random weights of networks used for timing are suitable for half precision."""

from __future__ import annotations

import torch
from torch import nn

from multi_dnn_ros.models.balance import balance, random_image

LARGEST_HALF = 65504.0


def deep() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3 if k == 0 else 8, 8, 3, padding=1) for k in range(12)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(10.0)
    return nn.Sequential(*layers)


def test_a_balanced_deep_network_does_not_overflow() -> None:
    network, image = deep(), random_image(16, 16)
    with torch.no_grad():
        assert float(network(image).abs().max()) > LARGEST_HALF
        balance(network, image)
        torch.testing.assert_close(float(network(image).std()), 1.0, rtol=0.05, atol=0.0)
    assert torch.equal(image, random_image(16, 16))
