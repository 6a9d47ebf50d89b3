"""The built-in networks for small images, as tests of backends and precisions do not need large ones."""

from __future__ import annotations

from torch import Tensor, nn

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.networks import DetectorNet, cells
from multi_dnn_ros.settings.schema import DnnConfig

#: (width, height) of their input.
SIZE = (128, 96)


def small_builtin(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """(network with its own weights, example inputs). name: without `builtin:`."""
    dnn = load_dnn("x", DnnConfig(role=name.partition("_")[0], model=f"builtin:{name}"))
    if isinstance(dnn.module, DetectorNet):  # its grids are those of the size that it was built for
        points, scales = cells(*SIZE, DetectorNet.STRIDES)
        dnn.module.points, dnn.module.scales = points.T[None].contiguous(), scales[None, None].contiguous()
    (image,) = dnn.example_inputs()
    return dnn.module, (image.new_zeros(1, 3, SIZE[1], SIZE[0]),)
