"""The inputs of an ONNX network: one image, whose sides are fixed where they are known; other known inputs become
constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.models.onnx_intake.refusal import Refusal

#: Maximum side of an input image, pixels; the same as for the parameters input_width and input_height.
MAX_SIDE = 8192
#: Further inputs of exports by RT-DETR, Paddle and LSTR: name -> value for (width, height). With these values boxes are
#: in pixels of the input image, and no pixel is padding.
KNOWN_INPUTS: dict[str, Callable[[int, int], npt.ArrayLike]] = {
    "orig_target_sizes": lambda width, height: [[width, height]],
    "im_shape": lambda width, height: [[height, width]],
    "scale_factor": lambda width, height: [[1, 1]],
    "input_mask": lambda width, height: np.zeros((1, 1, height, width)),
}


@dataclass(frozen=True)
class ImageInput:
    """The image input of the file.

    name: its name in the graph. size: (width, height); None: at least one side is free and not given elsewhere.
    channels_last: whether its shape is (1, height, width, 3). integers: whether it takes uint8, that is, values from 0
    to 255.
    """

    name: str
    size: tuple[int, int] | None
    channels_last: bool
    integers: bool


def fix_inputs(model: Any, requested: tuple[int, int], images: int = 1) -> ImageInput:
    """Fix, in place, the image input to (images, 3, height, width) float32, and turn other known inputs into constants.

    requested: (width, height) for sides that the file leaves free; 0: unknown. A side that stays free makes all
    shapes that depend on it free. Raises Refusal unless the inputs are one image, with sides of at most MAX_SIDE, and
    optionally some of KNOWN_INPUTS; and if there are such inputs and the size of the image is unknown.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in constants]
    candidates = [value for value in given if value.name not in KNOWN_INPUTS and _is_image(value)]
    others = [value for value in given if value not in candidates]
    unknown = [value.name for value in others if value.name not in KNOWN_INPUTS]
    if len(candidates) != 1 or unknown:
        shapes = [_shape(value) for value in given]
        named = f"; unknown: {', '.join(name[:60] for name in unknown[:5])}" if candidates and unknown else ""
        raise Refusal(
            f"takes inputs of shapes {shapes[:8]} (0: free{named}); allowed: one image (1, 3, height, width) or "
            f"(1, height, width, 3), and inputs named {', '.join(KNOWN_INPUTS)}"
        )
    (image,) = candidates
    shape = _shape(image)
    channels_last = shape[3] == 3 and shape[1] != 3
    height, width = shape[1:3] if channels_last else shape[2:]
    if max(width, height) > MAX_SIDE:
        raise Refusal(
            f"takes images of {width or 'any'} x {height or 'any'} (width x height); allowed: at most "
            f"{MAX_SIDE} x {MAX_SIDE}"
        )
    chosen = (width or requested[0], height or requested[1])
    size = chosen if all(chosen) else None
    if others and size is None:
        raise Refusal(
            f"has the input {others[0].name}, for which the image size must be known; set input_width and input_height"
        )
    integers = element_type(image) == _uint8()
    for value in others:
        _make_constant(model, value, chosen)
    _fix_image(model, image, chosen, channels_last, images)
    return ImageInput(image.name, size, channels_last, integers)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(max(axis.dim_value, 0) for axis in value.type.tensor_type.shape.dim)


def element_type(value: Any) -> int:
    """Data type of an onnx.ValueInfoProto, as in onnx.TensorProto."""
    return int(value.type.tensor_type.elem_type)


def _uint8() -> int:
    from onnx import TensorProto

    return int(TensorProto.UINT8)


def _is_image(value: Any) -> bool:
    from onnx import TensorProto

    shape = _shape(value)
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8)
    if len(shape) != 4 or shape[0] not in (0, 1) or element_type(value) not in kinds:
        return False
    return shape[1] in (0, 3) or shape[3] == 3


def _make_constant(model: Any, value: Any, size: tuple[int, int]) -> None:
    from onnx import helper, numpy_helper

    numbers = np.array(KNOWN_INPUTS[value.name](*size), helper.tensor_dtype_to_np_dtype(element_type(value)))
    model.graph.initializer.append(numpy_helper.from_array(numbers, value.name))
    model.graph.input.remove(value)


def _fix_image(model: Any, image: Any, size: tuple[int, int], channels_last: bool, images: int) -> None:
    """Give the graph's input fixed sides; insert a transpose if the graph reads the channels-last layout."""
    from onnx import TensorProto, helper

    width, height = (side or None for side in size)
    name = image.name
    position = list(model.graph.input).index(image)
    if channels_last:
        first = f"{name}_channels_first"
        model.graph.node.insert(
            0, helper.make_node("Transpose", [first], [name], f"{name}_transpose", perm=[0, 2, 3, 1])
        )
        name = first
    model.graph.input.remove(image)
    fixed = helper.make_tensor_value_info(name, TensorProto.FLOAT, [images, 3, height, width])
    model.graph.input.insert(position, fixed)
