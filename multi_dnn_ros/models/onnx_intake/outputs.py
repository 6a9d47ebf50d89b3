"""The outputs of an ONNX network: cut before non-maximum suppression, and maps as decoders read them.

The number of rows that suppression leaves depends on the image. Neither a captured graph nor a fixed plan of jobs can
have outputs of varying shape, and the decoder suppresses boxes anyway. If all boxes and scores come from one tensor, as
in Ultralytics' exports with `nms=True`, the cut is at that tensor; otherwise it is at the boxes (1, N, 4) and scores
(1, classes, N) that NonMaxSuppression reads.

Decoders of maps read logits (1, classes, h, w). TensorFlow's exporter writes (1, h, w, classes), and many exports end
with a softmax over the classes or, for one class, with a sigmoid. Applied to probabilities, the decoder's own softmax
would make all classes of a pixel nearly equally probable, and its sigmoid every pixel more probable than the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_graph import StaticGraph, node_name

#: Minimum length of a box's row: four coordinates and at least one score.
_MIN_ROW_LENGTH = 5
#: Transpositions from channels first to channels last, and back.
_LAYOUT_CHANGES = ([0, 2, 3, 1], [0, 3, 1, 2])


def output_names(graph: StaticGraph, outputs: Iterable[str], images: int = 1) -> list[str]:
    """Names of the values that the network returns: `outputs`, with the tensors at the cut instead of those after it.

    images: number of images. Raises ModelError, naming the operator, if a shape depends
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
        raise ModelError(
            f"operator {node_name(cause)}: the shape of its output depends on the content of the image; allowed: fixed "
            "shapes, or NonMaxSuppression behind the detection head; export the network without its post-processing"
        )
    frontier = {name for node in behind for name in node.input if name in graph.types and name not in graph.constants}
    head = _common_head(graph, frontier, images)
    found = [head] if head else list(dict.fromkeys(name for node in suppressions for name in node.input[:2]))
    lost = [name for name in found if name not in graph.types or name in graph.constants]
    if lost or len(found) > 2:
        raise ModelError(
            f"operator {node_name(suppressions[0])}: boxes and scores before it have no fixed shape; export the "
            "network without non-maximum suppression"
        )
    return [*(name for name in names if name not in cut and name not in found), *found]


def _common_head(graph: StaticGraph, frontier: set[str], images: int) -> str:
    """The last tensor (1, rows, N) or (1, N, rows) that every value of `frontier` depends on; empty: none."""
    ancestors = set(frontier)
    for node in reversed(graph.nodes):
        if ancestors.intersection(node.output):
            ancestors.update(node.input)
    for node in reversed(graph.nodes):
        for name in node.output:
            shape = graph.shape(name)
            if name not in ancestors or shape is None or len(shape) != 3 or shape[0] != images or min(shape) < 1:
                continue
            if min(shape[1:]) >= _MIN_ROW_LENGTH and not _reachable(graph, frontier, without=name):
                # Suppression reads rows; an export without suppression ends before the transposition to rows.
                return str(node.input[0]) if node.op_type == "Transpose" else str(name)
    return ""


def _reachable(graph: StaticGraph, targets: set[str], *, without: str) -> bool:
    reached = {value.name for value in graph.model.graph.input}
    for node in graph.nodes:
        if any(name in reached for name in node.input):
            reached.update(name for name in node.output if name != without)
    return bool(targets & reached)


def output_tensors(
    graph: StaticGraph, names: list[str], size: tuple[int, int] | None, opset: int, images: int = 1
) -> list[tuple[str, bool]]:
    """The tensors to return for outputs `names`, and whether each is (1, h, w, channels) in the graph; it is then
    returned as (1, channels, h, w).

    size: (width, height) of the input; None: free, so nothing is changed. opset: version of the standard operators.
    images: number of images.
    """
    if size is None:
        return [(name, False) for name in names]
    writers = {name: node for node in graph.nodes for name in node.output}
    tensors = []
    for name in names:
        axis = _channel_axis(graph.shape(name), size, images)
        value, found = name, (name, axis == 3)
        while value in writers and _keeps_values(graph, writers[value]):
            value = writers[value].input[0]
        inner, node = _channel_axis(graph.shape(value), size, images), writers.get(value)
        if axis and inner and node is not None and _is_activation(node, inner, graph.shape(value) or (), opset):
            found = node.input[0], inner == 3
        tensors.append(found)
    return tensors


def _channel_axis(shape: tuple[int, ...] | None, size: tuple[int, int], images: int) -> int | None:
    """The channel axis, 1 or 3, of a map in the proportions of the input; None: no such map, or both axes fit."""
    if shape is None or len(shape) != 4 or shape[0] != images:
        return None
    fitting = [
        axis for axis, (rows, columns) in ((1, shape[2:]), (3, shape[1:3])) if _in_proportion(rows, columns, size)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _in_proportion(rows: int, columns: int, size: tuple[int, int]) -> bool:
    """Whether a map is an integer number of times smaller or larger than the input, in both directions alike."""
    width, height = size
    if min(rows, columns) < 2:
        return False
    return any(
        (round(width / scale), round(height / scale)) == (columns, rows)
        for scale in (width / columns, height / rows)
        if scale == round(scale) or 1 / scale == round(1 / scale)
    )


def _keeps_values(graph: StaticGraph, node: Any) -> bool:
    """Whether the output has the values of the input, at the same positions in the image."""
    if node.op_type == "Cast":  # the last operator of many float16 files, which are computed in float32
        source, target = (graph.types[name].kind for name in (node.input[0], node.output[0]))
        return bool(source == target)
    if node.op_type == "Transpose":
        return any(entry.name == "perm" and list(entry.ints) in _LAYOUT_CHANGES for entry in node.attribute)
    return bool(node.op_type == "Identity")


def _is_activation(node: Any, axis: int, shape: tuple[int, ...], opset: int) -> bool:
    """Whether the node computes class probabilities per pixel: a softmax over `axis`, or a sigmoid for one class."""
    if shape[axis] == 1:
        return bool(node.op_type == "Sigmoid")
    if node.op_type != "Softmax":
        return False
    default = -1 if opset >= 13 else 1
    given = next((entry.i for entry in node.attribute if entry.name == "axis"), default) % 4
    # Before opset 13 the softmax is over all axes from the given one on.
    return given == axis and (opset >= 13 or axis == 3)
