"""Quantized weights as float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name


def dequantized(node: Any, inputs: dict[str, Any]) -> np.ndarray:
    """Value of a DequantizeLinear node: (x - zero point) * scale, with one scale for the tensor or one along `axis`.

    inputs: arrays by name. Raises Refusal for block-wise scales, and for scales that do not fit the shape.
    """
    options = {attribute.name: attribute.i for attribute in node.attribute}
    if options.get("block_size", 0):
        raise Refusal(f"operator {node_name(node)}: block_size; allowed: one scale for the tensor or for each channel")
    given = [np.asarray(inputs[name]) if name else None for name in node.input]
    if len(given) < 2 or given[0] is None or given[1] is None:
        raise Refusal(f"operator {node_name(node)} needs x and x_scale")
    values = given[0].astype(np.float32)
    axis = options.get("axis", 1)
    zero = given[2] if len(given) > 2 and given[2] is not None else np.zeros_like(given[1])

    def along(parameter: np.ndarray) -> np.ndarray:
        if parameter.size == 1:
            return parameter.astype(np.float32).reshape(())
        if not -values.ndim <= axis < values.ndim or parameter.size != values.shape[axis]:
            raise Refusal(f"operator {node_name(node)}: {parameter.size} scales do not fit the shape {values.shape}")
        return parameter.astype(np.float32).reshape([-1 if i == axis % values.ndim else 1 for i in range(values.ndim)])

    return np.asarray((values - along(zero)) * along(given[1]), np.float32)
