"""Cuts a graph before non-maximum suppression, because its number of output rows depends on the image.

Neither a captured graph nor a fixed plan of jobs can have outputs of varying shape, and the decoder suppresses boxes
anyway. If all boxes and scores come from one tensor, as in Ultralytics' exports with `nms=True`, the cut is at that
tensor; otherwise it is at the boxes (1, N, 4) and scores (1, classes, N) that NonMaxSuppression reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name
from multi_dnn_ros.models.onnx_intake.static_graph import StaticGraph

#: Minimum length of a box's row: four coordinates and at least one score.
_MIN_ROW_LENGTH = 5


def output_names(graph: StaticGraph, image: str, outputs: Iterable[str], images: int = 1) -> list[str]:
    """Names of the values that the network returns: `outputs`, with the tensors at the cut instead of those after it.

    image: name of the graph's input. images: number of images. Raises Refusal, naming the operator, if a shape depends
    on the content of the image for any other reason.
    """
    names = list(outputs)
    cut = [name for name in names if name in graph.dynamic]
    if not cut:
        return names
    behind = [node for node in graph.nodes if any(name in graph.dynamic for name in node.output)]
    suppressions = [node for node in behind if node.op_type == "NonMaxSuppression"]
    if not suppressions:
        cause = graph.dynamic[cut[0]]
        raise Refusal(
            f"operator {node_name(cause)}: the shape of its output depends on the content of the image; allowed: fixed "
            "shapes, or NonMaxSuppression behind the detection head; export the network without its post-processing"
        )
    frontier = {name for node in behind for name in node.input if name in graph.types and name not in graph.constants}
    head = _common_head(graph, image, frontier, images)
    found = [head] if head else list(dict.fromkeys(name for node in suppressions for name in node.input[:2]))
    lost = [name for name in found if name not in graph.types or name in graph.constants]
    if lost or len(found) > 2:
        raise Refusal(
            f"operator {node_name(suppressions[0])}: boxes and scores before it have no fixed shape; export the "
            "network without non-maximum suppression"
        )
    return [*(name for name in names if name not in cut and name not in found), *found]


def _common_head(graph: StaticGraph, image: str, frontier: set[str], images: int) -> str:
    """The last tensor (1, rows, N) or (1, N, rows) that every value of `frontier` depends on; empty: none."""
    writers = {name: node for node in graph.nodes for name in node.output}
    ancestors: set[str] = set()
    waiting = list(frontier)
    while waiting:
        name = waiting.pop()
        if name in ancestors or name in graph.constants:
            continue
        ancestors.add(name)
        if name in writers:
            waiting += [each for each in writers[name].input if each]
    for node in reversed(graph.nodes):
        for name in node.output:
            shape = graph.shape(name)
            if name not in ancestors or shape is None or len(shape) != 3 or shape[0] != images or min(shape) < 1:
                continue
            if min(shape[1:]) >= _MIN_ROW_LENGTH and not _reachable(graph, image, frontier, without=name):
                # Suppression reads rows; an export without suppression ends before the transposition to rows.
                return str(node.input[0]) if node.op_type == "Transpose" else str(name)
    return ""


def _reachable(graph: StaticGraph, image: str, targets: set[str], *, without: str) -> bool:
    reached = {image}
    for node in graph.nodes:
        if any(name in reached for name in node.input):
            reached.update(name for name in node.output if name != without)
    return bool(targets & reached)
