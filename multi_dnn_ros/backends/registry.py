"""Backends by name: how the jobs of a DNN run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.backends.cpu_features import has_int8_products
from multi_dnn_ros.common import extensions

if TYPE_CHECKING:
    import torch

#: TF32 and bfloat16 arithmetic need compute capability 8.0 (Ampere; Orin is 8.7, Xavier 7.2).
AMPERE = (8, 0)
_OF_AMPERE = ("tf32", "bf16")
ALL_PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16")


def _silent(text: str) -> None:
    """Discards the text."""


@dataclass(frozen=True)
class BackendRequest:
    """What a backend is created for.

    device: the device that the stages run on. tolerance: largest accepted error of a compiled or captured stage,
    relative to the scale of its results. dtype: number format of the layers; None: float32. dnn: its name, for
    messages. progress: called with a line for each slow step. precision: value of the parameter `dnn.<dnn>.precision`.
    calibration: returns the DNN's inputs for images of its camera; always given with int8. single_launch: on a CPU,
    whether to prepare all stages as one call, too (see static_stages.single_launches); on a GPU, whether to capture
    them as one graph. branches: the parameter `dnn.<dnn>.branches`; 1 for a backend without branches on this device.
    providers: value of the parameter `dnn.<dnn>.providers`. required: raise an error
    if none of `providers` works, instead of running another backend.
    """

    device: torch.device
    tolerance: float
    dtype: torch.dtype | None = None
    dnn: str = ""
    progress: Callable[[str], None] = _silent
    precision: str = "auto"
    calibration: Callable[[], Sequence[Tensors]] | None = None
    single_launch: bool = False
    branches: int = 1
    providers: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class BackendSpec:
    """Properties of a backend, known before it is created. Used in the engine process and by the offline verbs.

    name: value of the parameter `dnn.<dnn>.backend`.
    factory: creates the backend. It gets stages that are already cast to the precision, see backends/precision.py.
    precisions: allowed values of the parameter `dnn.<dnn>.precision` by type of device ("cpu", "cuda"); the backend
    does not run on other types. tf32 and bf16 on a GPU also need compute capability 8.0; int8 on a CPU needs 8-bit dot
    products.
    captures: types of device on which stages are captured as CUDA graphs, so that TF32 can differ between DNNs.
    compiles: preparing takes a compiler and many seconds; layers are timed with the device's automatic backend that
    does not.
    finish: called after the last DNN was prepared, for example to end compiler processes; None: nothing to do.
    version: returns the library that determines the times, such as "onnxruntime 1.20.0"; None: PyTorch.
    branches: types of device on which independent branches of a DNN can run at the same time.
    providers: whether it has execution providers, so that the parameter `dnn.<dnn>.providers` has an effect.
    takes_onnx: types of device on which its backend has a method `prepare_graph` for ONNX graphs, see OnnxRuntime.
    """

    name: str
    factory: Callable[[BackendRequest], Backend]
    precisions: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"cpu": ("auto", "fp32", "bf16"), "cuda": ("auto", "fp16", "bf16")}
    )
    captures: tuple[str, ...] = ()
    compiles: bool = False
    finish: Callable[[], None] | None = None
    version: Callable[[], str] | None = None
    branches: tuple[str, ...] = ()
    providers: bool = False
    takes_onnx: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises TypeError if `precisions` is not a mapping of tuples of names."""
        precisions: Any = self.precisions
        if not isinstance(precisions, Mapping) or not all(map(_is_names, precisions.values())):
            expected = "a mapping from types of device to tuples of names, such as {'cpu': ('auto', 'fp32')}"
            raise TypeError(f"precisions is {precisions!r}; expected {expected}")


def _is_names(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(name, str) for name in value)


def allowed_precisions(device_type: str, backend: str, capability: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Names of the precisions that are possible on a type of device with a backend.

    backend: its name, not `auto`; ExtensionError if it cannot be used. capability: compute capability of the GPU. TF32
    is a setting of the whole process. It can differ between DNNs only if a CUDA graph fixes it at capture time; a stage
    that cannot be captured uses the process's setting.
    """
    names = BACKENDS.get(backend).precisions.get(device_type, ())
    ampere = capability is not None and capability >= AMPERE
    if device_type == "cuda":
        return tuple(name for name in names if ampere or name not in _OF_AMPERE)
    return tuple(name for name in names if name != "int8" or has_int8_products())


def library_version(spec: BackendSpec) -> str:
    """What `spec.version` returns; empty: PyTorch."""
    return spec.version() if spec.version is not None else ""


BACKENDS = extensions.Registry(BackendSpec, extensions.BACKENDS)

#: Meaning of `auto` by type of device: the first of these backends that has the precision and what it compiles with.
AUTOMATIC: Mapping[str, tuple[str, ...]] = {"cpu": ("onnxruntime",), "cuda": ("inductor", "cuda_graph")}
