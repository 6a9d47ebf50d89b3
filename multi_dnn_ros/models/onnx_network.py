"""A network as an ONNX graph, which ONNX Runtime runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.models.onnx_graph import quiet_session

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
        found: list[npt.NDArray[Any]] = self._session.run(None, {self.model.graph.input[0].name: np.asarray(image)})
        return found

    @cached_property
    def _session(self) -> Any:
        return quiet_session(self.model)


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


def first_difference(
    found: Sequence[npt.ArrayLike], wanted: Sequence[npt.ArrayLike], tolerance: float, share: float = 0.0
) -> str:
    """What is wrong with the first output that is not as `wanted`, such as "output 1 differs"; empty: all agree.

    tolerance: largest difference relative to the output's largest value. share: of values that may differ by more.
    """
    for number, (own, right) in enumerate(zip(map(np.asarray, found), map(np.asarray, wanted), strict=True)):
        if own.shape != right.shape:
            return f"output {number} has the shape {own.shape} and differs"
        own, right = own.astype(np.float64), right.astype(np.float64)
        scale = np.abs(right[np.isfinite(right)]).max(initial=0.0)
        close = np.isclose(own, right, rtol=0.0, atol=tolerance * (0.01 + scale), equal_nan=True)
        if close.size and 1.0 - close.mean() > share:
            return f"output {number} differs"
    return ""
