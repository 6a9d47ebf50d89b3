"""The Triton kernel for convolutions, interpreted on the CPU, and when it is used. On a GPU: test/gpu."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@needs_triton
def test_random_convolutions_agree_with_pytorch() -> None:
    """Random geometry, outputs that do not fill a block, with and without bias and addition, and NaN."""
    script = Path(__file__).with_name("interpreted_convolutions.py")
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "convolutions agree" in done.stdout


GEOMETRY = {
    "STEP_H": 1,
    "STEP_W": 1,
    "PAD_H": 1,
    "PAD_W": 1,
    "SPREAD_H": 1,
    "SPREAD_W": 1,
    "WINDOW_H": 3,
    "WINDOW_W": 3,
}
IN_GROUPS = ((2, 1392, 14, 14), (1392, 232, 3, 3))
FIRST = ((8, 3, 224, 224), (64, 3, 3, 3))
SMALL = ((1, 256, 14, 14), (256, 256, 3, 3))


@needs_triton
@pytest.mark.parametrize(
    ("capability", "layer"),  # 8.0: A100; 8.7: Jetson Orin; 9.0: H100 and H200
    [
        pytest.param(80, IN_GROUPS, id="8.0-in_groups"),
        pytest.param(87, IN_GROUPS, id="8.7-in_groups", marks=pytest.mark.long),
        pytest.param(87, FIRST, id="8.7-first", marks=pytest.mark.long),
        pytest.param(90, IN_GROUPS, id="9.0-in_groups", marks=pytest.mark.long),
        pytest.param(90, SMALL, id="9.0-small"),
    ],
)
def test_the_kernel_compiles_for_other_gpus(capability: int, layer: tuple) -> None:
    """All tiles, with and without bias and addition, for layers of RegNetY-32GF, VGG16 and ResNet152."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from multi_dnn_ros.backends.triton_convolution import _kernel, tiles

    image, weight = map(torch.Size, layer)
    groups = image[1] // weight[1]
    sides = {"IN_H": image[2], "IN_W": image[3], "OUT_H": image[2], "OUT_W": image[3]}
    channels = {"GROUPS": groups, "GROUP_IN": weight[1], "GROUP_OUT": weight[0] // groups}
    choices = tiles(image, weight, torch.Size((image[0], weight[0], *image[2:])), 132)
    assert len(set(choices)) == len(choices) > 0
    for number, tile in enumerate(choices):
        constants: dict = {**GEOMETRY, **sides, **channels, "BLOCK_M": tile.pixels, "BLOCK_N": tile.outputs}
        constants |= {"BLOCK_K": tile.channels, "PARTS": tile.parts, "HAS_BIAS": True, "HAS_Z": bool(number % 2)}
        constants |= {"z": None} if not number % 2 else {}
        constants |= {"sums": None} if tile.parts == 1 else {}
        signature = {name: "constexpr" if name in constants else "*fp16" for name in _kernel.arg_names}
        signature |= {"pixels": "i32"} | ({"sums": "*fp32"} if tile.parts > 1 else {})
        constexprs = {(_kernel.arg_names.index(name),): value for name, value in constants.items()}
        compiled = triton.compile(
            ASTSource(_kernel, signature, constexprs),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": tile.warps, "num_stages": tile.stages},
        )
        assert "mma" in compiled.asm["ptx"]  # tensor cores
        # Shared memory limit per block, KiB.
        assert compiled.metadata.shared <= {80: 163, 87: 163, 90: 227}[capability] * 1024


@needs_triton
@pytest.mark.parametrize(
    ("image", "weight", "processors", "expected"),
    [
        ((8, 512, 28, 28), (512, 512, 3, 3), 132, set()),  # cuDNN is fast if there is much work
        ((1, 256, 14, 14), (256, 256, 3, 3), 16, {1, 3}),  # enough work for a small GPU
        ((1, 256, 14, 14), (256, 256, 3, 3), 8, set()),
        ((1, 256, 14, 14), (256, 256, 3, 3), 132, {8}),
        ((2, 192, 17, 17), (192, 192, 1, 7), 132, {4}),
        ((1, 512, 7, 7), (512, 512, 3, 3), 132, {8}),
        ((1, 256, 14, 14), (1024, 256, 1, 1), 132, {1}),  # too few steps for split-K
        ((8, 3, 224, 224), (64, 3, 3, 3), 132, {1}),
        ((7, 1392, 14, 14), (1392, 232, 3, 3), 132, {1}),
    ],
)
def test_split_k_is_used_for_little_work(image: tuple, weight: tuple, processors: int, expected: set) -> None:
    from multi_dnn_ros.backends.triton_convolution import tiles

    result = (image[0], weight[0], *image[2:])
    assert {tile.parts for tile in tiles(*map(torch.Size, (image, weight, result)), processors)} == expected


@needs_triton
@pytest.mark.parametrize(
    ("image", "weight", "dtype", "expected"),
    [
        ((1, 64, 8, 8), (64, 32, 3, 3), torch.float16, True),
        ((1, 64, 8, 8), (64, 64, 1, 1), torch.bfloat16, True),
        ((1, 3, 8, 8), (32, 3, 7, 7), torch.float16, True),
        ((1, 64, 8, 8), (64, 32, 3, 3), torch.float32, False),
        ((1, 64, 8, 8), (64, 8, 3, 3), torch.float16, False),  # too few channels for tensor cores
        ((1, 64, 8, 8), (64, 1, 3, 3), torch.float16, False),
        ((1, 60, 8, 8), (60, 20, 3, 3), torch.float16, False),  # not aligned for 16-byte loads
        ((1, 64, 8, 8), (16, 32, 3, 3), torch.float16, False),
        ((1, 64, 8, 8), (70, 32, 3, 3), torch.float16, True),  # any number of outputs
        ((1, 3, 8, 8), (8, 3, 3, 3), torch.float16, False),
        ((1, 8, 8, 8), (32, 8, 3, 3), torch.float16, False),
        ((1, 64, 8192, 4096), (64, 64, 3, 3), torch.float16, False),  # too large for 32-bit offsets
    ],
)
def test_supported_convolutions(image: tuple, weight: tuple, dtype: torch.dtype, expected: bool) -> None:
    from multi_dnn_ros.backends.triton_convolution import fits

    empty = functools.partial(torch.empty, dtype=dtype, device="meta")
    assert fits(empty(image), empty(weight)) is expected


#: Handle of a stream on a share of 16 SMs.
SHARE_STREAM = 7


class TimedGpu:
    """A fake GPU. times: times of the timed calls, in order; an exception among them is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: list) -> None:
        from multi_dnn_ros.backends import green_contexts, triton_convolution

        self.left = list(times)
        self.launched: list = []
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: self)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=self.stream))
        monkeypatch.setattr(green_contexts, "_sms_of", {SHARE_STREAM: 16})
        monkeypatch.setattr(triton_convolution, "_chosen", {})
        monkeypatch.setattr(triton_convolution, "gpu_ms", self.ms)
        monkeypatch.setattr(triton_convolution.Convolution, "launch", lambda work, tile: self.launched.append(tile))
        self.capturing = False
        self.stream = 1
        self.multi_processor_count = 132

    def ms(self, call: object) -> float:
        time = self.left.pop(0)
        if isinstance(time, Exception):
            raise time
        return time

    def run(self) -> bool:
        from multi_dnn_ros.backends.triton_convolution import Convolution, convolution_relu

        image, weight = torch.zeros(IN_GROUPS[0]).half(), torch.zeros(IN_GROUPS[1]).half()
        work = Convolution(image, weight, None, None, image, (1, 1, 1, 1, 1, 1))
        return convolution_relu(work, lambda: None)


@needs_triton
def test_the_fastest_tile_is_selected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from multi_dnn_ros.backends.triton_convolution import tiles

    image, weight = map(torch.Size, IN_GROUPS)
    choices = tiles(image, weight, image, 132)
    gpu = TimedGpu(monkeypatch, [5.0, 4.0, 2.0, 3.0])  # cuDNN first
    assert gpu.run()
    assert gpu.run()
    assert gpu.launched == [choices[1]] * 2
    assert not gpu.left


@needs_triton
def test_a_share_of_the_sms_has_its_own_fastest_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a DNN on the whole GPU has selected a tile for the same shapes, and vice versa."""
    from multi_dnn_ros.backends.triton_convolution import tiles

    image, weight = map(torch.Size, IN_GROUPS)
    whole, share = (tiles(image, weight, image, processors) for processors in (132, 16))
    gpu = TimedGpu(monkeypatch, [5.0, 4.0, 2.0, 3.0, *[9.0] * len(share), 1.0])
    assert gpu.run()
    gpu.stream = SHARE_STREAM
    assert gpu.run()
    assert gpu.launched == [whole[1], share[-1]]
    assert not gpu.left
    gpu.stream = 1
    assert gpu.run()
    assert gpu.launched[-1] == whole[1]


@needs_triton
def test_the_kernel_is_not_launched_if_cudnn_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TimedGpu(monkeypatch, [1.0, 4.0, 2.0, 3.0])
    assert not gpu.run()
    assert not gpu.run()
    assert not gpu.launched


@needs_triton
def test_a_tile_that_needs_too_much_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.errors import OutOfResources

    gpu = TimedGpu(monkeypatch, [5.0, OutOfResources(101, 100, "shared memory"), 4.0, OutOfResources(101, 100, "x")])
    assert gpu.run()
    assert len(gpu.launched) == 1


@needs_triton
def test_the_kernel_is_used_if_cudnn_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TimedGpu(monkeypatch, [RuntimeError("GET was unable to find an engine"), 4.0, 2.0, 3.0])
    assert gpu.run()
    assert len(gpu.launched) == 1


@needs_triton
def test_out_of_gpu_memory_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TimedGpu(monkeypatch, [5.0, torch.OutOfMemoryError("CUDA out of memory")])
    with pytest.raises(torch.OutOfMemoryError):
        gpu.run()


@needs_triton
def test_no_tile_is_timed_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = TimedGpu(monkeypatch, [5.0, 4.0, 2.0, 3.0])
    gpu.capturing = True
    assert not gpu.run()
    gpu.capturing = False
    assert gpu.run()
