"""An upper bound on the memory that a network takes, before it is converted."""

from __future__ import annotations

import math

from multi_dnn_ros.models.onnx_intake.folding import Folded
from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Maximum number of elements alive at one time while the network runs, and of its weights: 4 GiB each as float32.
MAX_LIVE = 1 << 30


def check_memory(folded: Folded, outputs: list[str]) -> None:
    """Raise Refusal, which names the operator, when the network would take more than MAX_LIVE elements.

    A tensor counts from the operator that writes it to the last one that reads it. Weights count once for each operator
    that reads them, because every converted layer has its own copy. Tensors with a free axis do not count.
    """
    last = {name: index for index, node in enumerate(folded.nodes) for name in node.input}
    last.update(dict.fromkeys(outputs, len(folded.nodes)))
    ends: dict[int, list[str]] = {}
    for name, index in last.items():
        ends.setdefault(index, []).append(name)
    live = weights = 0
    written: set[str] = set()
    for index, node in enumerate(folded.nodes):
        weights += sum(_elements(folded, name) for name in node.input if name in folded.constants)
        for name in node.output:
            if name in last:
                live += _elements(folded, name)
                written.add(name)
        if max(live, weights) > MAX_LIVE:
            what = "tensors" if live > weights else "weights"
            raise Refusal(
                f"at operator {node_name(node)} its {what} take more than {MAX_LIVE >> 28} GiB, the largest size "
                "allowed; choose a smaller input or network"
            )
        live -= sum(_elements(folded, name) for name in ends.get(index, ()) if name in written)


def _elements(folded: Folded, name: str) -> int:
    return math.prod(folded.shape(name) or (0,))
