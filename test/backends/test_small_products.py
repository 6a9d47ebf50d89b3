"""Small matrix products as sums: what is replaced, and that results are the same. On a GPU: test/gpu."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.small_products import sum_small_products


def squeeze_and_excite(image: torch.Tensor, down: nn.Conv2d, up: nn.Conv2d) -> torch.Tensor:
    squeezed = functional.adaptive_avg_pool2d(image, 1)
    return image * up(down(squeezed).relu()).sigmoid()


@settings(max_examples=20)
@given(
    images=st.integers(1, 6),
    channels=st.integers(1, 9),
    inner=st.integers(1, 7),
    bias=st.booleans(),
    last=st.booleans(),
)
def test_replaced_convolutions_compute_the_same(images: int, channels: int, inner: int, bias: bool, last: bool) -> None:
    torch.manual_seed(images)
    down, up = nn.Conv2d(channels, inner, 1, bias=bias), nn.Conv2d(inner, channels, 1, bias=bias)
    image = torch.randn(images, channels, 5, 4)
    if last:
        image = image.to(memory_format=torch.channels_last)
    with torch.no_grad():
        graph = make_fx(lambda image: squeeze_and_excite(image, down, up))(image)
        assert sum_small_products(graph) == (2 if images <= 4 else 0)
        check_agreement((graph(image),), (squeeze_and_excite(image, down, up),), 1e-5)


@settings(max_examples=20)
@given(images=st.integers(1, 40), channels=st.integers(1, 9), outputs=st.integers(1, 20), bias=st.booleans())
def test_a_fully_connected_layer_of_few_outputs_is_replaced(
    images: int, channels: int, outputs: int, bias: bool
) -> None:
    torch.manual_seed(images)
    layer, rows = nn.Linear(channels, outputs, bias=bias), torch.randn(images, channels)
    with torch.no_grad():
        graph = make_fx(layer)(rows)
        assert sum_small_products(graph) == (outputs <= 16 and images * outputs <= 512)
        check_agreement((graph(rows),), (layer(rows),), 1e-5)


def test_other_products_are_not_replaced() -> None:
    rows, columns, bias = torch.randn(2, 7), torch.randn(7, 5), torch.randn(5)
    graph = make_fx(lambda rows: (rows @ columns, torch.addmm(bias, rows, columns.t().contiguous().t(), alpha=2.0)))(
        rows
    )
    assert sum_small_products(graph) == 0
