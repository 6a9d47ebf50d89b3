"""Cuts an ONNX graph into stages: runs of consecutive nodes of about equal cost.

The graph is optimized first and cut afterwards. Convolutions then keep their blocked layout across a cut, and the parts
and the whole have the same reordered weights, so that they can share them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.models.onnx_graph import ValueType, names_read, optimized, quiet_options, quiet_session, value_types
from multi_dnn_ros.models.partition import BYTES_PER_S, KNOWN_SLACK, SLACK, estimated_s, partition

#: Cost of carrying a value that is not a tensor over a cut.
_OTHER_S = 1.0
#: Number of times that each node is measured.
_ROUNDS = 7


@dataclass(frozen=True)
class Part:
    """Consecutive nodes of an optimized graph. model: onnx.ModelProto; None if there is no node.

    takes, gives: names of the values carried into and out of the part, in order. Those in `gives` are outputs of
    `model`, `constants` (onnx.TensorProto by name), or passed on from `takes`. cost_s: estimated or measured seconds.
    """

    model: Any
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    constants: Mapping[str, Any]
    cost_s: float = 0.0


class OptimizedGraph:
    """An onnx.ModelProto with fixed shapes, optimized by ONNX Runtime for this CPU.

    standard_operators: only optimize so that operators of the ONNX standard remain, which every execution provider
    reads. Raises what ONNX Runtime raises.
    """

    def __init__(self, model: Any, *, standard_operators: bool = False) -> None:
        self.model = optimized(model, "BASIC" if standard_operators else "ALL")
        self.nodes = list(self.model.graph.node)
        self._constants = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self._inputs = tuple(value.name for value in self.model.graph.input if value.name not in self._constants)
        self._outputs = tuple(value.name for value in self.model.graph.output)

    @cached_property
    def _values(self) -> dict[str, ValueType]:
        return value_types(self.model)

    @cached_property
    def costs_s(self) -> list[float]:
        """Estimated seconds of each node on a nominal machine."""
        return [_estimated_s(node, self._values, self._constants) for node in self.nodes]

    @property
    def macs(self) -> int:
        """Multiplications and additions of all convolutions and matrix products."""
        return sum(_macs(node, self._values, self._constants) for node in self.nodes)

    @property
    def parameters(self) -> int:
        """Number of floating-point or 8-bit weights."""
        from onnx import TensorProto

        kinds = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8)
        return sum(
            math.prod(tensor.dims) for tensor in self._constants.values() if tensor.dims and tensor.data_type in kinds
        )

    def whole(self) -> Part:
        """The graph as one part."""
        return self.parts(1)[0]

    def parts(self, jobs: int, costs_s: Sequence[float] | None = None, limit_s: float = float("inf")) -> list[Part]:
        """`jobs` parts of about equal cost, at most one per node, cut where few bytes are carried.

        costs_s: measured seconds of each node; None: estimates. Times of a graph that was optimized otherwise count by
        their sum. limit_s: maximum cost of a part with several nodes; it is exceeded if `jobs` is too small.
        """
        known = costs_s is not None and len(costs_s) == len(self.nodes)
        costs = list(costs_s) if costs_s is not None and known else self.costs_s
        if costs_s is not None and not known:
            scale = sum(costs_s) / (sum(costs) or 1.0)
            costs = [cost * scale for cost in costs]
        results = {name: self._constants[name] for name in self._outputs if name in self._constants}
        if not self.nodes:
            return [Part(None, self._inputs, self._outputs, results)]
        starts = [0]
        if jobs > 1:
            cut_costs = [self._carried_s(self._carried(begin)) for begin in range(len(self.nodes))]
            starts = partition(costs, cut_costs, jobs, KNOWN_SLACK if known else SLACK, limit_s)
        rows = [self._inputs, *(self._carried(begin) for begin in starts[1:]), self._outputs]
        ends = [*starts[1:], len(self.nodes)]
        return [
            Part(
                self._part(self.nodes[begin:end], gives), takes, gives, results if end == ends[-1] else {},
                sum(costs[begin:end]),
            )
            for begin, end, (takes, gives) in zip(starts, ends, pairwise(rows), strict=True)
        ]  # fmt: skip

    @cached_property
    def _uses(self) -> dict[str, tuple[int, int]]:
        """By value that is no constant: the index of the node that writes it, -1 for an input, and of its last user."""
        uses = dict.fromkeys(self._inputs, (-1, -1))
        for index, node in enumerate(self.nodes):
            for name in names_read(node):
                if name in uses:
                    uses[name] = uses[name][0], index
            uses.update((name, (index, index)) for name in node.output if name)
        uses.update((name, (uses[name][0], len(self.nodes))) for name in self._outputs if name in uses)
        return uses

    def _carried(self, begin: int) -> tuple[str, ...]:
        """The values that a cut before node `begin` carries over."""
        return tuple(name for name, (made, last) in self._uses.items() if made < begin <= last)

    def _carried_s(self, names: Sequence[str]) -> float:
        return sum(_bytes(self._values[name]) / BYTES_PER_S if self._values[name].is_tensor else _OTHER_S
                   for name in names)  # fmt: skip

    def _part(self, nodes: Sequence[Any], gives: Sequence[str]) -> Any:
        import onnx

        if len(nodes) == len(self.nodes):
            return self.model
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        read = dict.fromkeys(name for node in nodes for name in names_read(node) if name not in made)
        inner = {name: value.info(name) for name, value in self._values.items() if value.is_tensor}
        outputs = [name for name in dict.fromkeys(gives) if name in made]
        graph = onnx.helper.make_graph(
            nodes,
            "part",
            [inner[name] for name in read if name in self._uses],
            [inner[name] for name in outputs],
            [self._constants[name] for name in read if name in self._constants],
            # With shapes ONNX Runtime plans memory reuse ahead.
            value_info=[inner[name] for name in made if name in inner and name not in outputs],
        )
        return onnx.helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)


def node_times_ms(graph: OptimizedGraph) -> list[float]:
    """Median milliseconds of each node, measured by ONNX Runtime's profiler on one image of noise."""
    import onnxruntime

    model = copy.deepcopy(graph.model)
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    options = quiet_options()
    options.intra_op_num_threads = 0
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="multi_dnn_ros_profile_") as folder:
        options.profile_file_prefix = os.path.join(folder, "nodes")
        session = quiet_session(model, options)
        given = {value.name: np.zeros(value.shape, np.float32) for value in session.get_inputs()}
        for _ in range(1 + _ROUNDS):
            session.run(None, given)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[str, list[float]] = {}
    for event in events:
        name, _, what = event["name"].rpartition("_kernel_time")
        if event.get("cat") == "Node" and not what:
            times.setdefault(name, []).append(event["dur"] / 1e3)
    return [
        statistics.median(times.get(f"node_{number}", [0.0, 0.0])[1:] or [0.0]) for number in range(len(graph.nodes))
    ]


def _bytes(value: ValueType) -> int:
    return math.prod(value.shape or (0,)) * value.item_bytes if value.is_tensor else 0


def _estimated_s(node: Any, values: Mapping[str, ValueType], constants: Mapping[str, Any]) -> float:
    moved = sum(_bytes(values[name]) for name in (*node.input, *node.output) if name in values)
    moved += sum(4 * math.prod(constants[name].dims) for name in node.input if name in constants)
    return estimated_s(_macs(node, values, constants), moved)


def _macs(node: Any, values: Mapping[str, ValueType], constants: Mapping[str, Any]) -> int:
    """Multiplications and additions of a convolution or matrix product, of whatever domain; 0 for other nodes."""
    if not any(part in node.op_type for part in ("Conv", "Gemm", "MatMul")):
        return 0
    shapes = [tuple(constants[name].dims) if name in constants else values[name].shape if name in values else None
              for name in (*node.input, node.output[0])]  # fmt: skip
    known = [shape for shape in shapes if shape]
    if not known or shapes[0] is None or shapes[-1] is None:
        return 0
    if "Conv" in node.op_type:
        # The weights: (channels out, channels in per group, ...), or for a transposed one with both exchanged.
        weights = next((shape for shape in shapes[1:-1] if shape is not None and len(shape) > 2), (1,))
        pixels = shapes[0] if "Transpose" in node.op_type else shapes[-1]
        return math.prod(pixels) * math.prod(weights[1:])
    return math.prod(shapes[0]) * (shapes[-1][-1] if shapes[-1] else 1)
