"""Random convolutions in groups through the kernel, which Triton's interpreter runs on the CPU; started by a test.

A process of its own: Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import random

import torch
from torch.nn import functional

from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.grouped_convolution import _TILES, _launch, fits

CASES = 10
LAST = torch.channels_last


def main() -> None:
    dice = random.Random(0)
    torch.manual_seed(0)
    for number in range(CASES):
        groups, window = dice.choice((2, 3, 5)), dice.choice(((1, 1), (3, 3), (1, 5), (2, 3)))
        stride, padding, dilation = ([dice.randint(low, 2) for _ in range(2)] for low in (1, 0, 1))
        channels, outputs = dice.choice((16, 24, 72)), dice.choice((16, 70))
        image = torch.randn(dice.randint(1, 3), groups * channels, dice.randint(9, 10), dice.randint(9, 10)).half()
        weight = (torch.randn(groups * outputs, channels, *window) / (channels * window[0] * window[1]) ** 0.5).half()
        bias = torch.randn(groups * outputs).half() if dice.random() < 0.7 else None
        geometry = (stride, padding, dilation, groups)
        image[0, 0, 2, 2] = float("nan") if number == 0 else 0.5
        expected = functional.conv2d(image.float(), weight.float(), None if bias is None else bias.float(), *geometry)
        z = torch.randn_like(expected).half() if dice.random() < 0.5 else None
        expected = (expected if z is None else expected + z.float()).relu()
        image, weight = (tensor.to(memory_format=LAST) for tensor in (image, weight))
        z = None if z is None else z.to(memory_format=LAST)
        result = torch.full(expected.shape, 7.0, dtype=torch.float16).to(memory_format=LAST)
        assert fits(image, weight)
        _launch(image, weight, bias, z, result, (*stride, *padding, *dilation), dice.choice(_TILES))
        assert torch.equal(result.isnan(), expected.isnan()), "what is no number must stay visible"
        check_agreement((result.float().nan_to_num(),), (expected.nan_to_num(),), 2e-3)
    print(CASES, "convolutions agree")


if __name__ == "__main__":
    main()
