"""ONNX Runtime: a whole job in one call, in the kernels of one of its execution providers and without the GIL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.host import CPU as HOST
from multi_dnn_ros.backends.onnx_providers import CPU, Choice, first_working
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec
from multi_dnn_ros.common.errors import summarize_error

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger(__name__)

_DEFAULT = BackendRequest(HOST, tolerance=1e-2, single_launch=True)


class OnnxRuntime:
    """Runs ONNX graphs as sessions on a CPU, or on a processor that reads and writes host memory.

    The execution providers are tried in turn; the reason why one is not used is a line in the log. If none works, the
    CPU's is used. The first stage's `single_launch` is the whole DNN as one session: cutting costs up to 9 %
    (docs/measured.md). A DNN whose int8 error is too large stays float32, with a warning.
    """

    def __init__(self, request: BackendRequest = _DEFAULT) -> None:
        self._request = request
        self._dnn = request.dnn or "the DNN"

    def prepare_graph(
        self,
        model: Any,
        jobs: int,
        costs_s: Sequence[float] | None = None,
        limit_s: float = float("inf"),
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """An onnx.ModelProto with fixed shapes as `jobs` stages. costs_s, limit_s: see OptimizedGraph.parts.

        A session uses as many threads as `host.threads` says at this call. The stages may be called by any number of
        threads at once. Raises ProviderError if the providers are required and none works, and what ONNX Runtime
        raises.
        """
        from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions

        model, request = self._in_precision(model), self._request

        def make(choice: Choice) -> tuple[Stage, ...]:
            return make_sessions(
                model, jobs, costs_s=costs_s, limit_s=limit_s, shared=shared, single_launch=request.single_launch,
                choice=choice, dnn=self._dnn,
            )  # fmt: skip

        ready = first_working(request.providers, HOST, "auto", self._dnn, make, required=request.required)
        if ready is not None:
            return ready
        log.warning("%s runs on provider cpu instead", self._dnn)
        return make(Choice(CPU))

    def prepare(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> tuple[Stage, ...]:
        """PyTorch modules, each as one session. ValueError for a device that is not the CPU; raises ExportError."""
        import torch

        from multi_dnn_ros.models.onnx_export import export

        if device.type != "cpu":
            raise ValueError(f"these sessions are for a CPU; the device is {device}")
        ready: list[Stage] = []
        carried = inputs
        with torch.inference_mode():
            for stage in stages:
                graph = export(stage.to("cpu").eval(), carried, carried=True)
                ready += self.prepare_graph(graph, 1, shared=shared)
                carried = stage(carried)
        return tuple(ready)

    def _in_precision(self, model: Any) -> Any:
        """The graph in int8 with precision int8; unchanged with other precisions, or if that fails."""
        request = self._request
        if request.precision != "int8" or request.calibration is None:
            return model
        from multi_dnn_ros.backends.quantization import quantized

        images = request.calibration()
        try:
            return quantized(model, images, request.progress, self._dnn)
        except Exception as error:  # whatever the library raises, float32 still works
            if is_out_of_memory(error):
                raise
            log.warning("%s stays float32, because int8 fails: %s", self._dnn, summarize_error(error))
            return model


def _version() -> str:
    try:
        import onnxruntime
    except ImportError:
        return "onnxruntime not installed"
    return f"onnxruntime {onnxruntime.__version__}"


def _make(request: BackendRequest) -> Backend:
    if request.device.type != "cuda":
        return OnnxRuntime(request)
    from multi_dnn_ros.backends.cuda_graph import CudaGraph
    from multi_dnn_ros.backends.onnxruntime_gpu import OnnxRuntimeOnGpu

    return CudaGraph(
        request.tolerance, kernels=OnnxRuntimeOnGpu(request), dnn=request.dnn, single_launch=request.single_launch
    )


SPEC = BackendSpec(
    "onnxruntime",
    _make,
    precisions={"cpu": ("auto", "fp32", "int8"), "cuda": ("auto", "fp32", "fp16")},
    captures=("cuda",),
    version=_version,
    providers=True,
    takes_onnx=("cpu",),
)
