"""How one job runs on a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch

Tensors = tuple[torch.Tensor, ...]
Stage = Callable[[Tensors], Tensors]


@dataclass
class Shared:
    """What the stages of one DNN for several numbers of images have in common; they must never run at the same time.

    converted: copies of weights, by type and by id of the float32 tensor, which must live on. pool, stream: where CUDA
    graphs have their memory, and on which they are captured. weights: of ONNX Runtime's sessions, by their contents.
    """

    converted: dict[torch.dtype, dict[int, torch.Tensor]] = field(default_factory=lambda: defaultdict(dict))
    pool: Any = None
    stream: Any = None
    weights: dict[tuple[Any, ...], Any] = field(default_factory=dict)


@runtime_checkable
class StaticStage(Protocol):
    """A stage that reads and writes the same memory for every frame, as captured ones do.

    inputs, outputs: where it reads and writes; anything else that it is called with is copied to `inputs` first.
    """

    inputs: Tensors
    outputs: Tensors

    def __call__(self, carried: Tensors) -> Tensors: ...


class Backend(Protocol):
    """Makes the stages of a DNN ready for a device, once, before the first frame."""

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Move, compile and warm up. `inputs`: example inputs of the first stage, any device.

        shared: of the same DNN's stages for other numbers of images.

        The returned stages compute on the calling thread's current stream.
        """
        ...
