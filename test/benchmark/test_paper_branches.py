"""The networks of `multi-dnn benchmark paper --branches`; what is measured on a GPU: test/gpu."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from multi_dnn_ros.benchmark.paper.branches import ENCODER, WindowHead, make_network
from multi_dnn_ros.cli.main import main


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, 16, 8, 256, generator=generator), torch.randn(1, 8, 8, 256, generator=generator)


def test_a_head_with_windows_of_one_feature_is_ordinary_attention() -> None:
    torch.manual_seed(0)
    head = WindowHead(256, 32, 1)
    search, template = maps()
    tokens = torch.cat([search.flatten(1, 2), template.flatten(1, 2)], 1)
    expected = functional.scaled_dot_product_attention(
        head.query(search).flatten(1, 2), head.key(tokens), head.value(tokens)
    )
    assert torch.allclose(head(search, template).flatten(1, 2), expected, atol=1e-5)


def test_keys_that_are_shifted_within_their_windows_change_nothing() -> None:
    """Every cyclic shift of a window is among the keys, so a shifted template gives the same result."""
    torch.manual_seed(0)
    head = WindowHead(256, 32, 4)
    search, template = maps()
    shifted = template.view(1, 2, 4, 2, 4, 256).roll((1, 3), (2, 4)).view(template.shape)
    assert torch.allclose(head(search, template), head(search, shifted), atol=1e-5)
    assert head(search, template).shape == (1, 16, 8, 32)


def test_the_encoder_returns_a_map_of_its_search_region() -> None:
    network = make_network(ENCODER, (128, 64))
    with torch.inference_mode():
        assert network.module(*network.inputs).shape == (1, 8, 16, 256)


def test_a_cpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "paper", "--branches", "--device", "cpu"]) == 2
    assert "--branches needs a GPU; the device is cpu" in capsys.readouterr().err
