"""Replaces automatic padding, which TensorFlow's exporters write, by explicit pads."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.models.onnx_intake.folding import Folded

_PADDED = ("AveragePool", "Conv", "MaxPool")


def make_pads_explicit(folded: Folded) -> None:
    """Replace, in place, auto_pad by pads in every node whose input size is known (ONNX operator Conv, auto_pad)."""
    from onnx import helper

    for node in folded.nodes:
        if node.op_type not in _PADDED:
            continue
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        automatic = given.get("auto_pad", b"NOTSET")
        shapes = folded.shape(node.input[0]), folded.shape(node.output[0])
        if automatic == b"NOTSET" or shapes[0] is None or shapes[1] is None:
            continue
        pads = [0, 0] * (len(shapes[0]) - 2)
        if automatic != b"VALID":
            pads = _same_pads(shapes[0][2:], shapes[1][2:], _kernel(folded, node, given), given, automatic)
        for attribute in [each for each in node.attribute if each.name in ("auto_pad", "pads")]:
            node.attribute.remove(attribute)
        node.attribute.append(helper.make_attribute("pads", pads))


def _kernel(folded: Folded, node: Any, given: dict[str, Any]) -> list[int]:
    return list(given.get("kernel_shape") or (folded.shape(node.input[1]) or ())[2:])


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
