"""The inputs of an ONNX network: one float32 image, whose sides are fixed where they are known; other known inputs
become constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.models.errors import Refusal

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

    size: (width, height); None: at least one side is free and not given elsewhere. integers: whether it takes uint8,
    that is, values from 0 to 255.
    """

    size: tuple[int, int] | None
    integers: bool


def fix_inputs(model: Any, requested: tuple[int, int], images: int = 1) -> ImageInput:
    """Fix, in place, the image input to (images, 3, height, width) float32, and turn other known inputs into constants.

    requested: (width, height) for sides that the file leaves free; 0: unknown. A side that stays free makes all
    shapes that depend on it free. Raises Refusal unless the inputs are one image, with sides of at most MAX_SIDE, and
    optionally some of KNOWN_INPUTS; and if there are such inputs and the size of the image is unknown.
    """
    from onnx import TensorProto, helper, numpy_helper

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
    shape, element = _shape(image), image.type.tensor_type.elem_type
    channels_last = shape[3] == 3 and shape[1] != 3
    height, width = shape[1:3] if channels_last else shape[2:]
    if max(width, height) > MAX_SIDE:
        raise Refusal(
            f"takes images of {width or 'any'} x {height or 'any'} (width x height); allowed: at most "
            f"{MAX_SIDE} x {MAX_SIDE}"
        )
    width, height = width or requested[0], height or requested[1]
    if others and not (width and height):
        raise Refusal(
            f"has the input {others[0].name}, for which the image size must be known; set input_width and input_height"
        )
    for value in others:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        numbers = np.array(KNOWN_INPUTS[value.name](width, height), kind)
        model.graph.initializer.append(numpy_helper.from_array(numbers, value.name))
        model.graph.input.remove(value)
    name = image.name
    if channels_last:
        name = f"{name}_channels_first"
        model.graph.node.insert(0, helper.make_node("Transpose", [name], [image.name], name, perm=[0, 2, 3, 1]))
    fixed = helper.make_tensor_value_info(name, TensorProto.FLOAT, [images, 3, height or None, width or None])
    model.graph.input.remove(image)
    model.graph.input.insert(0, fixed)
    return ImageInput((width, height) if width and height else None, element == TensorProto.UINT8)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(max(axis.dim_value, 0) for axis in value.type.tensor_type.shape.dim)


def _is_image(value: Any) -> bool:
    from onnx import TensorProto

    shape = _shape(value)
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8)
    if len(shape) != 4 or shape[0] not in (0, 1) or value.type.tensor_type.elem_type not in kinds:
        return False
    return shape[1] in (0, 3) or shape[3] == 3


def to_float32(model: Any) -> None:
    """Turn float16 and bfloat16 into float32 everywhere in an onnx.ModelProto, in place: a parameter, not the file,
    selects the precision.
    """
    from onnx import TensorProto, numpy_helper

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    for graph in _graphs(model.graph):
        tensors = list(graph.initializer)
        for attribute in (each for node in graph.node for each in node.attribute):
            if attribute.name in ("to", "dtype", "stash_type", "output_dtype") and attribute.i in half:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                tensors.append(attribute.t)
        for tensor in tensors:
            if tensor.data_type in half:
                values = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in half:
                value.type.tensor_type.elem_type = TensorProto.FLOAT


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for attribute in (each for node in graph.node for each in node.attribute):
        for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from _graphs(inner)
