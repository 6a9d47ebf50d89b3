"""A network as an ONNX graph, which ONNX Runtime runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.models.onnx_graph import quiet_options

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, eq=False)
class OnnxNetwork:
    """An image (1, 3, h, w) float32 -> the raw outputs, in the order of the graph's.

    model: onnx.ModelProto with one input and fixed shapes. for_images: number of images -> the graph for that many;
    raises an exception if the network takes one image at a time. to_torch: the network as a PyTorch module in eval
    mode, for what needs PyTorch's graph; raises ModelError.
    """

    model: Any
    for_images: Callable[[int], Any]
    to_torch: Callable[[], nn.Module]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return tuple(value.name for value in self.model.graph.output)

    def __call__(self, image: npt.ArrayLike) -> list[npt.NDArray[Any]]:
        """The raw outputs for one image, computed by one thread. Raises what ONNX Runtime raises."""
        (given,) = (value.name for value in self.model.graph.input)
        found: list[npt.NDArray[Any]] = self._session.run(list(self.outputs), {given: np.asarray(image)})
        return found

    @cached_property
    def _session(self) -> Any:
        import onnxruntime

        return onnxruntime.InferenceSession(
            self.model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
        )


def run_network(network: Any, image: npt.NDArray[np.float32]) -> list[Any]:
    """The raw outputs of an OnnxNetwork, or of a PyTorch module on the CPU, for an image (1, 3, h, w).

    Outputs of a module that are not tensors are left out.
    """
    if isinstance(network, OnnxNetwork):
        return network(image)
    import torch
    from torch.utils import _pytree as pytree

    with torch.inference_mode():
        outputs = pytree.tree_leaves(network(torch.from_numpy(np.asarray(image))))
    return [output for output in outputs if isinstance(output, torch.Tensor)]
