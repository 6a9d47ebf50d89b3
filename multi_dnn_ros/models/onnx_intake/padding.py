"""Replaces automatic padding, which TensorFlow's exporters write, by explicit pads."""

from __future__ import annotations

from typing import Any

_PADDED = ("AveragePool", "Conv", "MaxPool")


def make_pads_explicit(model: Any) -> None:
    """Replace, in place, auto_pad by pads in every node whose input size is known (ONNX operator Conv, auto_pad)."""
    from onnx import helper

    graph = model.graph
    shapes_by_name = {
        value.name: tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes_by_name.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    for node in graph.node:
        if node.op_type not in _PADDED:
            continue
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        automatic = given.get("auto_pad", b"NOTSET")
        shapes = shapes_by_name.get(node.input[0]), shapes_by_name.get(node.output[0])
        if automatic == b"NOTSET" or not shapes[0] or not shapes[1]:
            continue
        pads = [0, 0] * (len(shapes[0]) - 2)
        if automatic != b"VALID":
            pads = _same_pads(
                shapes[0][2:],
                shapes[1][2:],
                list(given.get("kernel_shape") or shapes_by_name[node.input[1]][2:]),
                given,
                automatic,
            )
        for attribute in [each for each in node.attribute if each.name in ("auto_pad", "pads")]:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("pads", pads))


def _same_pads(
    inputs: tuple[int, ...], outputs: tuple[int, ...], kernel: list[int], given: dict[str, Any], automatic: bytes
) -> list[int]:
    ones = [1] * len(kernel)
    strides, dilations = given.get("strides") or ones, given.get("dilations") or ones
    begins, ends = [], []
    for length, result, size, stride, dilation in zip(inputs, outputs, kernel, strides, dilations, strict=True):
        total = max((result - 1) * stride + (size - 1) * dilation + 1 - length, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if automatic == b"SAME_UPPER" else large)
        ends.append(large if automatic == b"SAME_UPPER" else small)
    return begins + ends
