"""Small products as sums against the libraries' kernels, by the GPU's clock. CPU twin: test_small_products.py."""

from __future__ import annotations

import pytest
import torch
import torchvision
from gpu_stages import GPU, needs, on_gpu, through

from multi_dnn_ros.backends import inductor
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend


@pytest.mark.parametrize(
    ("channels", "squeezed", "images"), [(696, 174, 1), (1392, 348, 1), (1392, 348, 2), (3712, 348, 1)]
)
def test_small_products_are_faster_as_sums(
    channels: int, squeezed: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RegNetY-32GF's squeeze and excitation, compiled."""
    needs("fp16", "inductor")
    torch.manual_seed(0)
    module = torchvision.ops.SqueezeExcitation(channels, squeezed).eval()
    inputs = noise_like((torch.zeros(images, channels, 14, 14),))
    with torch.inference_mode():
        expected = (module(*inputs),)

    def ms() -> float:
        stages = choose_backend("inductor", GPU, "fp16", dnn="a").prepare(cut_module(module, inputs, 1), inputs, GPU)
        check_agreement(through(stages, on_gpu(inputs)), expected, PRECISIONS["fp16"].tolerance(GPU))
        with torch.inference_mode():
            return gpu_ms(lambda: stages[0](stages[0].inputs))  # type: ignore[attr-defined]

    ours = ms()
    monkeypatch.setattr(inductor, "sum_small_products", lambda graph: 0)
    plain = ms()
    print(f"{channels} channels, {images} images: {plain * 1e3:.1f} us, as sums {ours * 1e3:.1f} us")
    assert ours < plain
