"""ONNX Runtime: a whole job in one call, in the kernels of one of its execution providers and without the GIL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.host import CPU as HOST
from multi_dnn_ros.backends.onnx_providers import CPU, Choice, ProviderError, first_working
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec
from multi_dnn_ros.common.errors import summarize_error

if TYPE_CHECKING:
    import torch
    from torch import nn

    from multi_dnn_ros.backends.quantization import Calibration

log = logging.getLogger(__name__)


class OnnxRuntime:
    """Runs ONNX graphs as sessions on a CPU, or on a processor that reads and writes host memory.

    The execution providers are tried in turn; the reason why one is not used is a line in the log. The first stage's
    `single_launch` is the whole DNN as one session: cutting costs up to 9 % (docs/measured.md).

    If none works, the CPU's is used, with a warning. dnn: its name, for the log. calibration: run in int8, calibrated
    with these images; a DNN whose int8 error is too large stays float32, with a warning. single_launch: also prepare
    the whole DNN as one session. providers: parameter `dnn.<dnn>.providers`. required: see BackendRequest.
    """

    def __init__(
        self,
        dnn: str = "",
        calibration: Calibration | None = None,
        *,
        single_launch: bool = True,
        providers: Sequence[str] = (),
        required: bool = False,
    ) -> None:
        self._calibration = calibration
        self._single_launch = single_launch
        self._dnn = dnn or "the DNN"
        self._providers = tuple(providers)
        self._required = required

    def prepare_graph(
        self,
        model: Any,
        jobs: int,
        costs_s: Sequence[float] | None = None,
        limit_s: float = float("inf"),
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """An onnx.ModelProto with fixed shapes as `jobs` stages. costs_s, limit_s: see OptimizedGraph.parts.

        A session uses as many threads as `host.threads` says at this call. The stages may be
        called by any number of threads at once. Raises ProviderError if the providers are required and none works, and
        what ONNX Runtime raises.
        """
        from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions

        model = self._in_precision(model)

        def make(choice: Choice) -> tuple[Stage, ...]:
            return make_sessions(
                model, jobs, costs_s=costs_s, limit_s=limit_s, shared=shared, single_launch=self._single_launch,
                choice=choice, dnn=self._dnn,
            )  # fmt: skip

        ready, failures = first_working(self._providers, HOST, "auto", self._dnn, make, log_last=False)
        if ready is not None:
            return ready
        if self._required:
            raise ProviderError(f"{self._dnn} cannot run on {', '.join(self._providers)}: {'; '.join(failures)}")
        log.warning("%s runs on provider cpu instead: %s", self._dnn, "; ".join(failures))
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
        """The graph in int8 if it is to be calibrated, otherwise, or if that fails, as it is."""
        if self._calibration is None:
            return model
        from multi_dnn_ros.backends.quantization import quantized

        images = self._calibration.split(model.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
        try:
            return quantized(model, images, self._calibration.progress, self._dnn)
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
    if request.device.type == "cuda":
        from multi_dnn_ros.backends.cuda_graph import CudaGraph
        from multi_dnn_ros.backends.onnxruntime_gpu import OnnxRuntimeOnGpu

        sessions = OnnxRuntimeOnGpu(
            request.tolerance,
            request.dnn,
            precision=request.precision,
            single_launch=request.single_launch,
            providers=request.providers,
            required=request.required,
        )
        return CudaGraph(request.tolerance, kernels=sessions, dnn=request.dnn, single_launch=request.single_launch)
    calibration = None
    if request.precision == "int8" and request.calibration is not None:
        from multi_dnn_ros.backends.quantization import Calibration

        calibration = Calibration(request.calibration, lambda text: request.progress(f"{request.dnn}: {text}"))
    return OnnxRuntime(
        request.dnn, calibration, single_launch=request.single_launch, providers=request.providers,
        required=request.required,
    )  # fmt: skip


SPEC = BackendSpec(
    "onnxruntime",
    _make,
    precisions={"cpu": ("auto", "fp32", "int8"), "cuda": ("auto", "fp32", "fp16")},
    captures=("cuda",),
    version=_version,
    providers=True,
    takes_onnx=("cpu",),
)
