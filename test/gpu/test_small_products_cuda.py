"""Squeeze and excitation, compiled as sums of products. CPU twin: test/backends/test_small_products.py."""

from __future__ import annotations

import pytest
import torch
import torchvision
from gpu_stages import GPU, needs, on_gpu, through

from multi_dnn_ros.backends import inductor
from multi_dnn_ros.backends.agreement import check_agreement, probe
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.choices import choose_backend
from multi_dnn_ros.models.cut import cut

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(("channels", "squeezed"), [(696, 174), (1392, 348), (3712, 348)])
def test_it_is_faster_than_cudnns(channels: int, squeezed: int, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """RegNetY-32GF's."""
    needs("fp16", "inductor")
    torch.manual_seed(0)
    module = torchvision.ops.SqueezeExcitation(channels, squeezed).eval()
    inputs = probe((torch.zeros(images, channels, 14, 14),))
    with torch.inference_mode():
        expected = (module(*inputs),)

    def ms() -> float:
        stages = choose_backend("inductor", GPU, "fp16", dnn="a").prepare(cut(module, inputs, 1), inputs, GPU)
        check_agreement(through(stages, on_gpu(inputs)), expected, PRECISIONS["fp16"].tolerance(GPU))
        with torch.inference_mode():
            return gpu_ms(lambda: stages[0](stages[0].inputs))  # type: ignore[attr-defined]

    ours = ms()
    monkeypatch.setattr(inductor, "sum_small_products", lambda graph: 0)
    plain = ms()
    print(f"{channels} channels, {images} images: {plain * 1e3:.1f} us, as sums {ours * 1e3:.1f} us")
    assert ours < plain
