"""TorchInductor: fuses the layers of a stage into few generated kernels, which are compiled once and cached on disk.

A stage is passed to Inductor as a flat graph of operations, not through torch.compile: Dynamo limits recompilations per
class (8, shared by all instances), after which the next DNN silently runs eager, and it checks its guards for every
frame.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.eager import Eager, compiled_or_eager
from multi_dnn_ros.backends.registry import ALL_PRECISIONS, BackendRequest, BackendSpec
from multi_dnn_ros.backends.small_products import sum_small_products
from multi_dnn_ros.common.resources import cache_folder, writable_folder

log = logging.getLogger(__name__)

#: freezing: parameters become constants, so that layouts are chosen and constants folded at compile time.
_OPTIONS = {"freezing": True, "fx_graph_cache": True, "triton.cudagraphs": False}
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_WARM_UP_CALLS = 2


class Inductor:
    """Compiles each stage; a stage that Inductor rejects, or whose results differ, stays eager.

    dnn: its name, for the log. progress: called with a line before and after each stage. tolerance: largest error of a
    compiled stage compared with the eager one on noise, relative to the scale of its results.
    """

    def __init__(
        self, dnn: str = "", progress: Callable[[str], None] = lambda text: None, tolerance: float = 1e-4
    ) -> None:
        self._dnn = dnn or "the DNN"
        self._progress = progress
        self._tolerance = tolerance

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move to `device`, compile and compare. Without a compiler: one warning, and the stages stay eager."""
        eager = Eager().prepare(stages, inputs, device)
        missing = missing_compiler(device)
        if missing:
            log.warning("%s runs eager, because backend inductor %s", self._dnn, missing)
            return eager
        _choose_cache()
        ready: list[Stage] = []
        images = f" for {len(inputs[0])} images" if inputs[0].ndim == 4 and len(inputs[0]) > 1 else ""
        carried = tuple(tensor.to(device) for tensor in noise_like(inputs))
        for index, stage in enumerate(eager):
            with torch.inference_mode():
                expected = stage(carried)
            title = f"job {index + 1} of {len(stages)} of {self._dnn}{images}"
            self._progress(f"compiling {title} for {device}, {_operations(stage)} operations")
            begin = time.perf_counter()
            compile_stage = partial(_compile, stage, carried, expected, self._tolerance)
            ready.append(compiled_or_eager(f"job {index + 1} of {self._dnn}", "Inductor", compile_stage, stage))
            self._progress(f"compiled {title} after {time.perf_counter() - begin:.1f} s")
            with torch.inference_mode():
                carried = ready[-1](carried)  # the next stage is compiled for these memory layouts
        return tuple(ready)

    def compile_segment(self, segment: Stage, inputs: Tensors) -> Stage:
        """Compile a part of a stage that prepare() has compiled, and compare; see compile_segments()."""
        with torch.inference_mode():
            expected = segment(inputs)
        return _compile(segment, inputs, expected, self._tolerance)


def cache_directory() -> Path:
    """Cache of compiled kernels: $TORCHINDUCTOR_CACHE_DIR, else multi_dnn_ros/inductor in the user's cache folder.

    Inductor's key is a hash of the graph with its dtypes and shapes, the device, its options and the versions of
    PyTorch and Triton, so another model, GPU, release or precision is compiled again. On a CPU only compiled C++ is
    cached; the graph around it is rebuilt, because weights packed for oneDNN cannot be stored.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    chosen = os.environ.get(_CACHE_VARIABLE)
    if chosen and chosen != default_cache_dir():  # PyTorch itself sets the default when it is imported
        return Path(chosen)
    return cache_folder() / "inductor"


def _choose_cache() -> None:
    """Set a cache folder that other users cannot write: PyTorch executes what it reads there, and its default is a
    predictable name in the shared temporary folder.
    """
    folder = writable_folder(cache_directory())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ[_CACHE_VARIABLE] = str(folder)


def _compile(stage: Stage, carried: Tensors, expected: Tensors, tolerance: float) -> Stage:
    # Imported here because it takes seconds.
    import torch._inductor
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if not carried:
        raise ValueError("a stage without inputs cannot be traced")
    with torch.no_grad():
        # The inputs were made in inference mode; such tensors cannot be traced.
        inputs = tuple(tensor.clone() for tensor in carried)
        graph = make_fx(lambda *tensors: stage(tensors))(*inputs)
        if inputs[0].is_cuda:
            sum_small_products(graph)
        # Inductor's cache on disk requires a tracing context and static shapes.
        fake = FakeTensorMode(shape_env=ShapeEnv())
        with tracing(TracingContext(fake)):
            shapes: list[Any] = [fake.from_tensor(tensor, static_shapes=True) for tensor in inputs]
            function = torch._inductor.compile(graph, shapes, options=dict(_OPTIONS))
    ready = _Compiled(function, inputs)
    with torch.inference_mode():
        for _ in range(_WARM_UP_CALLS):
            results = ready(carried)
    check_agreement(results, expected, tolerance)
    return ready


class _Compiled:
    """A compiled stage. It requires the strides of the example inputs; other inputs are copied."""

    def __init__(self, function: Callable[..., Sequence[torch.Tensor]], example: Tensors) -> None:
        self._function = function
        self._strides = tuple(tensor.stride() for tensor in example)

    def __call__(self, carried: Tensors) -> Tensors:
        inputs = [
            tensor if tensor.stride() == strides else _with_strides(tensor, strides)
            for tensor, strides in zip(carried, self._strides, strict=True)
        ]
        return tuple(self._function(*inputs))


def _with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _operations(stage: Any) -> int:
    """Number of operations in a stage's graph."""
    graphs = (part for part in stage.modules() if isinstance(part, torch.fx.GraphModule))
    return sum(len(graph.graph.nodes) for graph in graphs)


def end_compiler_processes() -> None:
    """End Inductor's worker processes, which would otherwise keep their memory until this process ends."""
    compiler = sys.modules.get("torch._inductor.async_compile")
    if compiler is not None:
        compiler.shutdown_compile_workers()


def _make(request: BackendRequest) -> Backend:
    """The backend for a request; on a GPU the compiled stages are captured as CUDA graphs."""
    compiled = Inductor(request.dnn, request.progress, request.tolerance)
    if request.device.type != "cuda":
        return compiled
    return CudaGraph(
        request.tolerance, kernels=compiled, dnn=request.dnn, single_launch=request.single_launch,
        branches=request.branches, compile_segment=compiled.compile_segment, progress=request.progress,
    )  # fmt: skip


SPEC = BackendSpec(
    "inductor",
    _make,
    precisions={"cpu": ("auto", "fp32", "bf16"), "cuda": ALL_PRECISIONS},
    captures=("cuda",),
    compiles=True,
    branches=("cuda",),
    finish=end_compiler_processes,
)
