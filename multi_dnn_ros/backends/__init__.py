"""How a stage runs on a device: the interface of all backends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends.gates import Gate

#: Values carried between stages: PyTorch's tensors or, where ONNX Runtime serves on a CPU, NumPy arrays.
Tensors = tuple[Any, ...]
Stage = Callable[[Tensors], Tensors]


@dataclass
class Shared:
    """State shared by the stages of one DNN for different numbers of images, which must never run at the same time.

    converted: weights cast to another dtype, by dtype and id of the float32 tensor, which must stay alive. pool,
    stream: memory pool of the CUDA graphs and the stream they are captured on. weights: those of ONNX Runtime's
    sessions, by content. gate, reduce: see CapturedNetwork.
    """

    converted: dict[torch.dtype, dict[int, torch.Tensor]] = field(default_factory=lambda: defaultdict(dict))
    pool: Any = None
    stream: Any = None
    weights: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    gate: Gate | None = None
    reduce: Callable[[Tensors], Tensors] | None = None


@runtime_checkable
class StaticStage(Protocol):
    """A stage that reads and writes the same memory for every frame, such as a captured one.

    inputs, outputs: that memory. Called with other tensors, the stage first copies them to `inputs`.
    """

    inputs: Tensors
    outputs: Tensors

    def __call__(self, carried: Tensors) -> Tensors: ...


class Backend(Protocol):
    """Prepares the stages of a DNN for a device, once, before the first frame."""

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move the stages to `device`, compile them and warm up.

        inputs: example inputs of the first stage, on any device. shared: state shared with the same DNN's stages for
        other numbers of images. The returned stages run on the calling thread's current stream.
        """
        ...


def run_stages(stages: Iterable[Stage], inputs: Tensors) -> Tensors:
    """The outputs of the last stage, each stage called with the outputs of the previous one."""
    carried = inputs
    for stage in stages:
        carried = stage(carried)
    return carried
