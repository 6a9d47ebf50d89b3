"""ONNX Runtime: a whole job in one call that runs without Python's global lock, in its own kernels. For CPUs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec
from multi_dnn_ros.backends.torchscript import TorchScript
from multi_dnn_ros.common.error_text import summarize_error

if TYPE_CHECKING:
    from multi_dnn_ros.backends.quantization import Calibration

log = logging.getLogger(__name__)

#: Largest error of float32 results, where a DNN cannot be in int8.
_FP32_TOLERANCE = 1e-4


class OnnxRuntime:
    """Runs each job as a session of its own; a DNN that cannot be exported, or computes otherwise then, runs as
    TorchScript, which one line in the log says.

    The first job's `chain` is the whole DNN as one session: cutting costs up to 9 % (docs/measured.md), which a frame
    that nobody waits for need not pay.

    tolerance: largest error of the DNN's results, relative to their scale. dnn: its name, for the log. fallback: the
    backend for what cannot be exported; None: TorchScript. calibration: compute in int8, with these images; a DNN that
    is too far from float32 then stays float32, which one line in the log says.
    """

    def __init__(
        self,
        tolerance: float = 1e-4,
        dnn: str = "",
        fallback: Backend | None = None,
        calibration: Calibration | None = None,
        *,
        single_launch: bool = True,
    ) -> None:
        self._tolerance = tolerance
        self._calibration = calibration
        self._single_launch = single_launch
        self._dnn = dnn or "the DNN"
        self._fallback = fallback or TorchScript(tolerance, dnn)

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Export, make the sessions, compare with eager results, warm up.

        A session computes with as many threads as PyTorch has now (``torch.get_num_threads()``). The stages may run in
        any number of threads at once. ValueError for a device that is not the CPU.
        """
        if device.type != "cpu":
            raise ValueError(f"backend onnxruntime runs on a CPU; the device is {device}")
        # Outside of what is caught below: images that cannot be read are the user's to mend.
        images = None if self._calibration is None else self._calibration.split(len(inputs[0]))
        try:
            # Imported here: a platform without wheels of it has TorchScript.
            from multi_dnn_ros.backends.onnxruntime_sessions import make_int8_sessions, make_sessions

            stages = [stage.to(device).eval() for stage in stages]
            if self._calibration is not None and images is not None:
                try:
                    return make_int8_sessions(
                        stages, inputs, images, self._dnn, self._calibration.progress, shared, self._single_launch
                    )
                except Exception as error:  # whatever the library raises, float32 serves
                    if is_out_of_memory(error):
                        raise
                    log.warning("%s stays float32, as in int8: %s", self._dnn, summarize_error(error))
            return make_sessions(stages, inputs, self._tolerance, shared, self._single_launch)
        except Exception as error:  # whatever exporter or runtime raises, TorchScript takes more
            if is_out_of_memory(error):
                raise
            log.warning(
                "%s runs as torchscript, as ONNX Runtime does not take it: %s", self._dnn, summarize_error(error)
            )
        return self._fallback.prepare(stages, inputs, device, shared)


def _version() -> str:
    try:
        import onnxruntime
    except ImportError:  # jobs then run as torchscript
        return "onnxruntime not installed"
    return f"onnxruntime {onnxruntime.__version__}"


def _make(request: BackendRequest) -> Backend:
    if request.precision != "int8" or request.calibration is None:
        return OnnxRuntime(request.tolerance, request.dnn, single_launch=request.single_launch)
    from multi_dnn_ros.backends.quantization import Calibration

    calibration = Calibration(request.calibration, lambda text: request.progress(f"{request.dnn}: {text}"))
    return OnnxRuntime(_FP32_TOLERANCE, request.dnn, calibration=calibration, single_launch=request.single_launch)


SPEC = BackendSpec(
    "onnxruntime",
    _make,
    precisions={"cpu": ("auto", "fp32", "int8")},  # its float32 cannot be cast to another type by us
    version=_version,
)
