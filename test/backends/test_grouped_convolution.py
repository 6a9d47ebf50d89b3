"""The kernel for convolutions in groups, interpreted on the CPU, and when it is not used. On a GPU: test/gpu."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@needs_triton
def test_random_convolutions_agree_with_pytorch() -> None:
    """Windows, steps, padding, dilation, outputs that fill no block, bias or none, a sum or none, a NaN."""
    script = Path(__file__).with_name("interpreted_convolutions.py")
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "convolutions agree" in done.stdout


@needs_triton
@pytest.mark.parametrize(
    ("image", "weight", "dtype", "expected"),
    [
        ((1, 64, 8, 8), (64, 32, 3, 3), torch.float16, True),
        ((1, 64, 8, 8), (64, 32, 3, 3), torch.bfloat16, True),
        ((1, 64, 8, 8), (64, 32, 3, 3), torch.float32, False),
        ((1, 64, 8, 8), (64, 8, 3, 3), torch.float16, False),  # too few channels for the units that multiply matrices
        ((1, 64, 8, 8), (64, 1, 3, 3), torch.float16, False),
        ((1, 60, 8, 8), (60, 20, 3, 3), torch.float16, False),  # their places in memory cannot be read 16 bytes at once
        ((1, 64, 8, 8), (16, 32, 3, 3), torch.float16, False),
    ],
)
def test_what_the_kernel_is_for(image: tuple, weight: tuple, dtype: torch.dtype, expected: bool) -> None:
    from multi_dnn_ros.backends.grouped_convolution import fits

    assert fits(torch.zeros(image, dtype=dtype), torch.zeros(weight, dtype=dtype)) is expected
