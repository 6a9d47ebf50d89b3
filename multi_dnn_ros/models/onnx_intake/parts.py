"""Cuts a dynamically quantized network into parts at its DynamicQuantizeLinear operators.

Such an operator takes the range of an activation from its values. A rounding error of float32 can therefore change all
8-bit values of an activation, and later layers amplify the difference: the outputs of a correct conversion can differ
from those of ONNX Runtime as much as those of a wrong one. Within a part, from one set of quantizers to the next, the
network computes in float32 and amplifies little. With the inputs of every part taken from ONNX Runtime, a correct
conversion agrees closely, and a wrong operator changes the outputs of its own part.
"""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.models.onnx_intake.preparation import Prepared


def with_given_ranges(prepared: Prepared) -> Any:
    """A copy of the prepared onnx.ModelProto in which no part reads 8-bit values and ranges that another part computes.

    Inputs: the image, then `prepared.rounded`. Outputs: those of the network, then the values that the network computes
    for `prepared.rounded` itself, which nothing in the graph reads.
    """
    from onnx import ModelProto

    model = ModelProto()
    model.CopyFrom(prepared.model)
    graph = model.graph
    own = {name: f"{name} of its part" for name in prepared.rounded}
    for node in graph.node:
        node.output[:] = [own.get(name, name) for name in node.output]
    kinds = {value.name: value for value in graph.value_info}
    for name in prepared.rounded:
        graph.input.append(kinds[name])
        graph.output.append(kinds[name])
        graph.output[-1].name = own[name]
        graph.value_info.remove(kinds[name])
    return model
