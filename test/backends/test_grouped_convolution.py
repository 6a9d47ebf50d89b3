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
@pytest.mark.parametrize("capability", [80, 87, 90])  # A100, Jetson Orin, H100 and H200
def test_it_compiles_for_gpus_that_are_not_here(capability: int) -> None:
    """Every way to divide the work, with and without bias and sum, for a layer of RegNetY-32GF."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from multi_dnn_ros.backends.grouped_convolution import _TILES, _kernel

    layer = {"IN_H": 14, "IN_W": 14, "OUT_H": 14, "OUT_W": 14, "ALL_IN": 1392, "ALL_OUT": 1392, "GROUP_IN": 232,
             "GROUP_OUT": 232, "WINDOW_H": 3, "WINDOW_W": 3, "STEP_H": 1, "STEP_W": 1, "PAD_H": 1, "PAD_W": 1,
             "SPREAD_H": 1, "SPREAD_W": 1, "BLOCK_K": 64}  # fmt: skip
    for number, (pixels, outputs, stages) in enumerate(_TILES):
        constants: dict = {**layer, "BLOCK_M": pixels, "BLOCK_N": outputs, "HAS_BIAS": True, "HAS_Z": bool(number % 2)}
        if not number % 2:
            constants["z"] = None
        signature = {name: "constexpr" if name in constants else "*fp16" for name in _kernel.arg_names}
        signature["pixels"] = "i32"
        places = {(_kernel.arg_names.index(name),): value for name, value in constants.items()}
        compiled = triton.compile(
            ASTSource(_kernel, signature, places),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": 4, "num_stages": stages},
        )
        assert "mma" in compiled.asm["ptx"]  # the units that multiply matrices
        # Of the shared memory that a block may have there, KiB.
        assert compiled.metadata.shared <= {80: 163, 87: 163, 90: 227}[capability] * 1024


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
