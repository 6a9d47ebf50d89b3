"""ONNX Runtime: a whole stage in one call, in the kernels of one of its execution providers and without the GIL."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.onnx_providers import Choice, ProviderError, first_working
from multi_dnn_ros.backends.onnxruntime_gpu import OnnxRuntimeOnGpu
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec
from multi_dnn_ros.backends.torchscript import TorchScript
from multi_dnn_ros.common.errors import summarize_error

if TYPE_CHECKING:
    from multi_dnn_ros.backends.quantization import Calibration

log = logging.getLogger(__name__)

#: Largest error of float32 results, for a DNN that cannot run in int8.
_FP32_TOLERANCE = 1e-4


class OnnxRuntime:
    """Runs each stage as a session on a CPU, or on a processor that reads and writes host memory.

    The execution providers are tried in turn; the reason why one is not used is a line in the log. A DNN that cannot be
    exported, or whose results differ, runs as TorchScript, with a warning. The first stage's `single_launch` is the
    whole DNN as one session: cutting costs up to 9 % (docs/measured.md).

    tolerance: largest error of the DNN's results, relative to their scale. dnn: its name, for the log. fallback: the
    backend for a DNN that cannot be exported; None: TorchScript. calibration: run in int8, calibrated with these
    images; a DNN whose int8 error is too large stays float32, with a warning. single_launch: also prepare the whole DNN
    as one session. providers: parameter `dnn.<dnn>.providers`. required: see BackendRequest.
    """

    def __init__(
        self,
        tolerance: float = 1e-4,
        dnn: str = "",
        fallback: Backend | None = None,
        calibration: Calibration | None = None,
        *,
        single_launch: bool = True,
        providers: Sequence[str] = (),
        required: bool = False,
    ) -> None:
        self._tolerance = tolerance
        self._calibration = calibration
        self._single_launch = single_launch
        self._dnn = dnn or "the DNN"
        self._fallback = fallback or TorchScript(tolerance, dnn)
        self._providers = tuple(providers)
        self._required = required

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Export, create the sessions, compare with eager results and warm up.

        A session uses as many threads as PyTorch does at this call (``torch.get_num_threads()``). The stages may be
        called by any number of threads at once. ValueError for a device that is not the CPU. ProviderError if the
        providers are required and none works.
        """
        if device.type != "cpu":
            raise ValueError(f"these sessions are for a CPU; the device is {device}")
        # Outside of the try block: the user has to correct images that cannot be read.
        images = None if self._calibration is None else self._calibration.split(len(inputs[0]))
        failures: list[str] = []
        try:
            # Imported here, so that TorchScript is used if onnxruntime cannot be imported.
            from multi_dnn_ros.backends.onnxruntime_sessions import make_int8_sessions, make_sessions

            stages = [stage.to(device).eval() for stage in stages]
            if self._calibration is not None and images is not None:
                try:
                    return make_int8_sessions(
                        stages, inputs, images, self._dnn, self._calibration.progress, shared, self._single_launch
                    )
                except Exception as error:  # whatever the library raises, float32 still works
                    if is_out_of_memory(error):
                        raise
                    log.warning("%s stays float32, because int8 fails: %s", self._dnn, summarize_error(error))

            def make(choice: Choice) -> tuple[Stage, ...]:
                return make_sessions(stages, inputs, self._tolerance, shared, self._single_launch, choice, self._dnn)

            ready, failures = first_working(self._providers, device, "auto", self._dnn, make, log_last=False)
            if ready is not None:
                return ready
        except Exception as error:  # whatever the exporter or runtime raises, TorchScript supports more
            if is_out_of_memory(error):
                raise
            failures = [summarize_error(error)]
        if self._required:
            raise ProviderError(f"{self._dnn} cannot run on {', '.join(self._providers)}: {'; '.join(failures)}")
        reason = failures[-1] if failures else "it has no execution provider for a CPU"
        log.warning("%s runs as torchscript, because ONNX Runtime fails: %s", self._dnn, reason)
        return self._fallback.prepare(stages, inputs, device, shared)


def _version() -> str:
    try:
        import onnxruntime
    except ImportError:  # stages then run as torchscript
        return "onnxruntime not installed"
    return f"onnxruntime {onnxruntime.__version__}"


def _make(request: BackendRequest) -> Backend:
    if request.device.type == "cuda":
        sessions = OnnxRuntimeOnGpu(
            request.tolerance,
            request.dnn,
            precision=request.precision,
            single_launch=request.single_launch,
            providers=request.providers,
            required=request.required,
        )
        return CudaGraph(request.tolerance, kernels=sessions, dnn=request.dnn, single_launch=request.single_launch)
    tolerance, calibration = request.tolerance, None
    if request.precision == "int8" and request.calibration is not None:
        from multi_dnn_ros.backends.quantization import Calibration

        tolerance = _FP32_TOLERANCE
        calibration = Calibration(request.calibration, lambda text: request.progress(f"{request.dnn}: {text}"))
    return OnnxRuntime(
        tolerance,
        request.dnn,
        calibration=calibration,
        single_launch=request.single_launch,
        providers=request.providers,
        required=request.required,
    )


SPEC = BackendSpec(
    "onnxruntime",
    _make,
    precisions={"cpu": ("auto", "fp32", "int8"), "cuda": ("auto", "fp32", "fp16")},
    captures=("cuda",),
    version=_version,
    providers=True,
)
