"""An ONNX graph as ONNX Runtime sees it: optimized, and with the type and shape of each value.

Exporters write sizes as chains of small operators (Shape, Gather, Concat, Reshape). With a fixed input size each of
them is a constant. ONNX Runtime folds them and finds the shapes, also those of its own operators, such as quantized
ones. Values whose shape depends on the content of the image are reported.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import ModelError

log = logging.getLogger(__name__)

#: Elements of the largest tensor inside a network, and of all tensors that do not depend on the image: 2 GiB as
#: float32.
MAX_ELEMENTS = 1 << 29
#: Element types of tensors, by ONNX Runtime's names, and their sizes in bytes.
_ELEMENTS = {
    "float": ("FLOAT", 4), "double": ("DOUBLE", 8), "float16": ("FLOAT16", 2), "bfloat16": ("BFLOAT16", 2),
    "bool": ("BOOL", 1), "int8": ("INT8", 1), "uint8": ("UINT8", 1), "int16": ("INT16", 2), "uint16": ("UINT16", 2),
    "int32": ("INT32", 4), "uint32": ("UINT32", 4), "int64": ("INT64", 8), "uint64": ("UINT64", 8),
}  # fmt: skip


class ValueType(NamedTuple):
    """Type of a value. kind: ONNX Runtime's name, such as "tensor(float)". axes: 0 for a free axis."""

    kind: str
    axes: tuple[int, ...]

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor of numbers."""
        return self.kind.removeprefix("tensor(").removesuffix(")") in _ELEMENTS

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape; None unless it is a tensor and every axis is known."""
        return self.axes if self.is_tensor and all(self.axes) else None

    @property
    def element(self) -> str:
        """Element type, as in onnx.TensorProto."""
        return _ELEMENTS[self.kind.removeprefix("tensor(").removesuffix(")")][0]

    @property
    def item_bytes(self) -> int:
        """Size of an element in bytes."""
        return _ELEMENTS[self.kind.removeprefix("tensor(").removesuffix(")")][1]

    def info(self, name: str) -> Any:
        """An onnx.ValueInfoProto."""
        import onnx

        axes = [axis or None for axis in self.axes]
        return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, self.element), axes)


def quiet_session(model: Any, options: Any = None) -> Any:
    """A session of the CPU's provider for an onnx.ModelProto. options: None: `quiet_options`."""
    import onnxruntime

    return onnxruntime.InferenceSession(
        model.SerializeToString(), options or quiet_options(), providers=["CPUExecutionProvider"]
    )


def optimized(model: Any, level: str) -> Any:
    """An onnx.ModelProto optimized by ONNX Runtime. level: "BASIC" (only operators of the file's own domains remain) or
    "ALL" (with operators and layouts for this CPU). Raises what ONNX Runtime raises.
    """
    import onnx
    import onnxruntime

    options = quiet_options()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    with memory_file("optimized.onnx") as path:
        options.optimized_model_filepath = path
        quiet_session(model, options)
        return onnx.load(path)


def value_types(model: Any) -> dict[str, ValueType]:
    """Type of each value of an onnx.ModelProto that a node of its graph writes, and of its inputs."""
    import onnx
    import onnxruntime

    probe = copy.deepcopy(model)
    known = {value.name for value in model.graph.output}
    written = dict.fromkeys(name for node in model.graph.node for name in node.output if name and name not in known)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in written)
    options = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = quiet_session(probe, options)
    return {
        value.name: ValueType(value.type, tuple(axis if isinstance(axis, int) else 0 for axis in value.shape))
        for value in (*session.get_inputs(), *session.get_outputs())
    }


def node_name(node: Any) -> str:
    """Operator and, if it has one, name of a node, for messages."""
    operator = f"{node.domain}.{node.op_type}".strip(".")
    return f"{operator} (node {node.name!r})" if node.name else operator


def names_read(node: Any) -> list[str]:
    """Names of the values that a node reads, those of its subgraphs included."""
    inner = [name for graph in subgraphs(node) for each in graph.node for name in each.input]
    return [name for name in (*node.input, *inner) if name]


def subgraphs(node: Any) -> Iterator[Any]:
    """All graphs inside a node, such as the branches of an If, and those inside their nodes."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield graph
            for each in graph.node:
                yield from subgraphs(each)


def quiet_options() -> Any:
    """Options of a session of one thread that logs errors only."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


@contextlib.contextmanager
def memory_file(name: str) -> Iterator[str]:
    """Context manager: the path of a temporary file in memory."""
    file = os.memfd_create(name)
    try:
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


@dataclass(frozen=True)
class StaticGraph:
    """A folded graph. types: of the values that nodes write or that are inputs. dynamic: name of a value whose shape
    depends on the image -> the node that causes it; such values are not in types.
    """

    model: Any
    types: dict[str, ValueType]
    dynamic: dict[str, Any]

    @cached_property
    def nodes(self) -> list[Any]:
        """The nodes in order."""
        return list(self.model.graph.node)

    @cached_property
    def constants(self) -> dict[str, Any]:
        """onnx.TensorProto by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a value; None unless every axis is known."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return self.types[name].shape if name in self.types else None


def static_graph(model: Any, *, static: bool) -> StaticGraph:
    """Fold an onnx.ModelProto, which is not changed.

    static: the input size is fixed, so an unknown shape depends on the content of the image and is reported in
    `dynamic`; otherwise unknown shapes are accepted. Raises ModelError for what ONNX Runtime cannot run, and for
    tensors of more than MAX_ELEMENTS elements.
    """
    _check_sizes(model)
    try:
        folded = optimized(model, "BASIC")
        types = value_types(folded)
    except Exception as error:
        raise ModelError(f"cannot be read as ONNX, or ONNX Runtime cannot run it: {summarize_error(error)}") from None
    dynamic: dict[str, Any] = {}
    for node in folded.graph.node if static else ():
        cause = next((dynamic[name] for name in node.input if name in dynamic), None)
        for name in node.output:
            if name and (cause is not None or (types[name].is_tensor and types[name].shape is None)):
                dynamic[name] = cause = cause or node
                types.pop(name)
    if dynamic and len(folded.graph.node) != len(model.graph.node):
        # ONNX Runtime folds what an operator consists of only when it is called again.
        return static_graph(folded, static=static)
    return StaticGraph(folded, types, dynamic)


def _check_sizes(model: Any) -> None:
    """Raise ModelError if a tensor, such as one that ONNX Runtime would compute while folding, is too large."""
    from onnx import shape_inference

    inferred = shape_inference.infer_shapes(model).graph
    sizes = {
        value.name: math.prod(max(axis.dim_value, 1) for axis in value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.output)
    }
    for node in model.graph.node:
        if max((sizes.get(name, 0) for name in node.output), default=0) > MAX_ELEMENTS:
            raise ModelError(
                f"at operator {node_name(node)} its tensors take more than {MAX_ELEMENTS >> 28} GiB, the largest size "
                "allowed; choose a smaller input or network"
            )


def read_kept(path: Path) -> Any:
    """The onnx.ModelProto that :func:`keep` wrote to `path`; None: there is none, or it is damaged."""
    import onnx

    if path.is_file():
        with contextlib.suppress(Exception):  # protobuf's own errors
            model = onnx.load(path)
            if model.graph.node:  # an empty file, as a power loss may leave, is an empty model
                return model
        log.warning("%s is damaged and is made again", path)
    return None


def keep(path: Path, model: Any) -> None:
    """Write an onnx.ModelProto to a file of the cache; a problem is a warning in the log."""
    try:
        with atomic_write(path, to_disk=True) as temporary:
            temporary.write_bytes(model.SerializeToString())
    except OSError as error:
        log.warning("the ONNX model is not kept, so that it is made again: %s cannot be written: %s", path, error)
