"""Runs random grouped convolutions and convolutions of few channels in the interpreted kernel; started by a test.

This needs a separate process, because Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import random

import torch
from torch.nn import functional

from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.triton_convolution import Convolution, fits, tiles

CASES = 10
LAST = torch.channels_last


def main() -> None:
    dice = random.Random(0)
    torch.manual_seed(0)
    for number in range(CASES):
        few = number % 3 == 0
        groups = 1 if few else dice.choice((1, 2, 5))
        window = (7, 7) if few and number % 2 else dice.choice(((1, 1), (3, 3), (1, 5), (2, 3)))
        stride, padding, dilation = ([dice.randint(low, 2) for _ in range(2)] for low in (1, 0, 1))
        dilation = [1, 1] if window == (7, 7) else dilation
        channels, outputs = dice.choice((1, 3, 4) if few else (16, 24, 72)), dice.choice((16, 20, 70))
        image = torch.randn(dice.randint(1, 3), groups * channels, dice.randint(8, 9), dice.randint(8, 9)).half()
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
        choices = tiles(image.shape, weight.shape, result.shape, 100 if groups == 1 else dice.choice((1, 20, 100)))
        tile = dice.choice(choices)._replace(parts=dice.choice((1, 3)))
        Convolution(image, weight, bias, z, result, (*stride, *padding, *dilation)).launch(tile)
        assert torch.equal(result.isnan(), expected.isnan()), "NaN must stay visible"
        check_agreement((result.float().nan_to_num(),), (expected.nan_to_num(),), 2e-3)
    print(CASES, "convolutions agree")


if __name__ == "__main__":
    main()
