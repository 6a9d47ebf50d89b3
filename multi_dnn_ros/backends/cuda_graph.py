"""CUDA graphs: a whole stage in one launch. For NVIDIA GPUs.

Launching kernels one by one from Python holds the GIL, which makes threads slower than processes. A captured graph is
one launch of a few microseconds, and its memory is allocated at capture time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.backends.branched_graph import CudaStreams, compile_segments, with_branches
from multi_dnn_ros.backends.branches import SerialGraphError
from multi_dnn_ros.backends.capture import capture_stream, cudnn_benchmark
from multi_dnn_ros.backends.captured_network import Captured, CapturedNetwork
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.gates import GateError
from multi_dnn_ros.backends.registry import ALL_PRECISIONS, BackendRequest, BackendSpec
from multi_dnn_ros.backends.static_stages import copy_to
from multi_dnn_ros.common.errors import summarize_error

log = logging.getLogger(__name__)

#: Comparisons of two runs with the same input, each after a run with another input.
_REPEATS = 8


class CudaGraph:
    """Captures each stage; a stage that cannot be captured, for example because it waits for the GPU, stays eager.

    The captured stages of a DNN, for all batch sizes, use one memory pool: the engine starts a frame only after the
    previous one has finished the last stage. Captures run one at a time with nothing else on the GPU, so all of them
    happen during configuration.

    tolerance: largest error of a captured stage compared with the stage itself, relative to the scale of its results.
    kernels: the backend whose stages are captured; None: eager. dnn: its name, for the log. single_launch: capture all
    stages as one graph, with gates in between; `prepare` then returns it as the only stage, a CapturedNetwork, unless
    that fails. branches: parameter `dnn.<dnn>.branches`; without effect unless the kernels are eager or
    `compile_segment` is given, see compile_segments().
    """

    def __init__(
        self,
        tolerance: float = 1e-2,
        *,
        kernels: Backend | None = None,
        dnn: str = "",
        single_launch: bool = False,
        branches: int = 1,
        compile_segment: Callable[[Stage, Tensors], Stage] | None = None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._tolerance = tolerance
        self._dnn = dnn or "the DNN"
        self._kernels = kernels or Eager()
        self._single_launch = single_launch
        self._branches = branches
        self._compile_segment = compile_segment
        self._progress = progress

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move the stages to `device`, warm up, capture, and compare the results with those before the capture.

        Captures on the calling thread's current stream, which binds the graphs to that stream's SMs; see
        capture_stream. ValueError for a device that is not a GPU.
        """
        if device.type != "cuda":
            raise ValueError(f"backend cuda_graph needs a GPU; the device is {device}")
        shared = shared or Shared()
        if shared.pool is None:  # before the stages are prepared: some are bound to the stream
            shared.pool = torch.cuda.graph_pool_handle()
            shared.stream = capture_stream(device)
        with cudnn_benchmark(bool(inputs) and len(inputs[0]) > 1):
            return self._prepare(stages, inputs, device, shared)

    def _prepare(
        self, stages: Sequence[torch.nn.Module], inputs: Tensors, device: torch.device, shared: Shared
    ) -> tuple[Stage, ...]:
        uncaptured = self._kernels.prepare(stages, inputs, device, shared)
        with torch.inference_mode():
            carried = tuple(tensor.to(device) for tensor in inputs)
            if self._single_launch:
                try:
                    return (self._capture_whole(uncaptured, stages, carried, shared),)
                except Exception as error:
                    _log_failure(f"the jobs of {self._dnn} are launched one by one", " as one graph", error, device)
            ready: list[Stage] = []
            for index, (stage, source) in enumerate(zip(uncaptured, stages, strict=True)):
                # Read the previous stage's outputs in place; anything else is copied to memory of this stage.
                memory = ready[-1].outputs if ready and isinstance(ready[-1], Captured) else None
                try:
                    ready.append(self._capture(index, stage, source, carried, memory, shared))
                except Exception as error:  # whatever the capture raises, the stage still runs eager
                    _log_failure(f"job {index + 1} of {self._dnn} runs eager", "", error, device)
                    ready.append(stage)
                carried = ready[-1](carried)
            torch.cuda.synchronize(device)
        return tuple(ready)

    def _capture_whole(
        self, uncaptured: Sequence[Stage], sources: Sequence[torch.nn.Module], inputs: Tensors, shared: Shared
    ) -> Captured:
        """All stages as one graph, with a gate before each if the driver can do that."""

        def make(launched: Sequence[Stage], originals: Sequence[Stage]) -> Captured:
            capture = partial(
                CapturedNetwork, launched, originals, inputs, shared.pool, shared.stream, self._tolerance,
                reduce=shared.reduce,
            )  # fmt: skip
            try:
                return capture(gate=shared.gate)
            except GateError as error:
                log.warning("%s cannot be held back for more important DNNs: %s", self._dnn, summarize_error(error))
                return capture()

        if (session := getattr(uncaptured[0], "single_launch", None)) is not None:  # the backend's own of all stages
            return make([session], uncaptured)
        launched: list[Stage] = []
        carried = inputs
        for index, (stage, source) in enumerate(zip(uncaptured, sources, strict=True)):
            launched.append(self._with_branches(index, stage, source, carried, shared.stream))
            carried = stage(carried)
        return self._checked(self._dnn, launched, uncaptured, sources, inputs, make)

    def _capture(
        self, index: int, stage: Stage, source: torch.nn.Module, carried: Tensors, memory: Tensors | None,
        shared: Shared,
    ) -> Captured:  # fmt: skip
        """One stage as a graph. source: the module on the device that the stage is, or was compiled from. memory: see
        Captured.
        """

        def make(launched: Sequence[Stage], originals: Sequence[Stage]) -> Captured:
            return Captured(launched, originals, carried, shared.pool, shared.stream, self._tolerance, memory=memory)

        launched = self._with_branches(index, stage, source, carried, shared.stream)
        return self._checked(f"job {index + 1} of {self._dnn}", [launched], [stage], [source], carried, make)

    def _checked(
        self,
        title: str,
        launched: Sequence[Stage],
        stages: Sequence[Stage],
        sources: Sequence[Stage],
        inputs: Tensors,
        make: Callable[[Sequence[Stage], Sequence[Stage]], Captured],
    ) -> Captured:
        """The capture of `launched` if its branches give the results of `sources`, otherwise that of `stages`."""
        if list(launched) == list(stages):
            return make(stages, stages)
        try:
            captured = make(launched, sources)
            kept = tuple(tensor.clone() for tensor in captured.inputs)
            try:
                check_repeatable(captured, inputs)
            finally:
                copy_to(captured.inputs, kept)
            return captured
        except Exception as error:  # also out of memory: on one stream it may still work
            torch.cuda.synchronize(inputs[0].device)
            log.warning("%s runs on one stream, because its branches fail: %s", title, summarize_error(error))
        return make(stages, stages)

    def _with_branches(
        self, index: int, stage: Stage, source: torch.nn.Module, carried: Tensors, stream: torch.cuda.Stream
    ) -> Stage:
        """`source` with its branches on several streams, if that is wanted and there are any; otherwise `stage`."""
        is_compiled = stage is not source
        if self._branches == 1 or (is_compiled and self._compile_segment is None):
            return stage
        try:
            parallel = with_branches(source, self._branches, partial(CudaStreams, stream), fuses=is_compiled)
        except SerialGraphError as error:
            log.info("job %d of %s runs on one stream: %s", index + 1, self._dnn, error)
            return stage
        if parallel is None:
            return stage
        if is_compiled and self._compile_segment is not None:
            title = f"job {index + 1} of {self._dnn}"
            compile_segments(title, parallel, carried, self._compile_segment, self._progress)
        return parallel


def check_repeatable(stage: Stage, inputs: Tensors) -> None:
    """Raise ValueError unless runs with the same input give bit-equal results, with other inputs in between.

    inputs: example inputs; noise of their shapes is used. An operation that overwrites memory which another branch
    still reads would show here.
    """
    image = noise_like(inputs)
    other = tuple(-2.0 * tensor if tensor.is_floating_point() else tensor for tensor in image)
    expected = tuple(tensor.clone() for tensor in stage(image))
    for _ in range(_REPEATS):
        stage(other)
        for index, (result, right) in enumerate(zip(stage(image), expected, strict=True)):
            same = (result.shape, result.dtype) == (right.shape, right.dtype)
            if not same or not torch.equal(_bits(result), _bits(right)):  # NaN is equal to itself, too
                raise ValueError(f"result {index} differs between two runs with the same input")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _log_failure(what: str, how: str, error: BaseException, device: torch.device) -> None:
    """Log that something cannot be captured. Raises `error` again if the memory does not suffice."""
    if is_out_of_memory(error):
        raise error
    torch.cuda.synchronize(device)
    log.warning("%s, because it cannot be captured%s: %s", what, how, summarize_error(error))


def _make(request: BackendRequest) -> Backend:
    return CudaGraph(request.tolerance, dnn=request.dnn, single_launch=request.single_launch, branches=request.branches)


SPEC = BackendSpec(
    "cuda_graph",
    _make,
    precisions={"cuda": ALL_PRECISIONS},
    captures=("cuda",),
    branches=("cuda",),
)
