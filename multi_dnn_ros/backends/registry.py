"""Backends by name: how the jobs of a DNN run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.common import extensions

ALL_PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16")


def _silent(text: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class BackendRequest:
    """What a backend is made for.

    device: that the jobs run on. tolerance: largest error of a job, relative to the scale of its results, with which a
    compiled or captured job is accepted. dtype: that layers compute in. dnn: its name, for messages. progress: gets a
    line for each step of what takes long. precision: value of the parameter `dnn.<dnn>.precision`. calibration: gives
    the DNN's inputs for images of its camera; always there with int8. single_launch: False: do not prepare all stages
    as one launch, too (see static_stages.single_launches), because no launch may be longer than a stage.
    """

    device: torch.device
    tolerance: float
    dtype: torch.dtype = torch.float32
    dnn: str = ""
    progress: Callable[[str], None] = _silent
    precision: str = "auto"
    calibration: Callable[[], Sequence[Tensors]] | None = None
    single_launch: bool = True


@dataclass(frozen=True)
class BackendSpec:
    """What is known about a backend before it is made. Used in the engine process and by the offline verbs.

    name: value of the parameter `dnn.<dnn>.backend`.
    factory: makes the backend. Casting to the precision is done around it, see backends/precision.py.
    precisions: values of the parameter `dnn.<dnn>.precision` by type of device ("cpu", "cuda"); it runs on no other
    type. Of these, tf32 and bf16 on a GPU also need compute capability 8.0, int8 on a CPU 8-bit dot products.
    captures: types of device on which jobs are captured as CUDA graphs, so that TF32 can differ from DNN to DNN.
    fuses: types of device on which it makes one operation of a convolution and its activation.
    compiles: preparing takes minutes; layers are then timed by the device's automatic backend instead.
    timing_marks: it runs the graph of a stage as it stands, so that marks between layers time each in its place.
    version: of the library that decides its times, such as "onnxruntime 1.20.0"; None: PyTorch.
    """

    name: str
    factory: Callable[[BackendRequest], Backend]
    precisions: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"cpu": ("auto", "fp32", "bf16"), "cuda": ("auto", "fp16", "bf16")}
    )
    captures: tuple[str, ...] = ()
    fuses: tuple[str, ...] = ()
    compiles: bool = False
    timing_marks: bool = False
    version: Callable[[], str] | None = None


BACKENDS = extensions.Registry(BackendSpec, extensions.BACKENDS)

#: What `auto` means by type of device: the first of these that has the precision.
AUTOMATIC: Mapping[str, tuple[str, ...]] = {"cpu": ("onnxruntime", "torchscript"), "cuda": ("cuda_graph",)}
