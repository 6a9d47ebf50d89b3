"""An ONNX model as ONNX Runtime optimized it, whole or cut between jobs.

Optimized first and cut afterwards: convolutions keep their blocked layout across a cut, and the weights that the
optimizer reordered are the same for the parts as for the whole, so that they need to be held only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx
import onnxruntime

from multi_dnn_ros.backends.onnx_export import ExportedChain, memory_file

#: Types of tensors that pass between operators, as ONNX Runtime names them.
_ELEMENTS = {
    f"tensor({name})": getattr(onnx.TensorProto, element)
    for name, element in {
        "float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL",
        "int8": "INT8", "uint8": "UINT8", "int16": "INT16", "uint16": "UINT16", "int32": "INT32", "uint32": "UINT32",
        "int64": "INT64", "uint64": "UINT64",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Consecutive nodes of an optimized model; model None: no node is left for this job.

    takes, gives: names of the values that are carried into it and out of it, in order. Those that are outputs of
    `model` it computes, those of `constants` are always the same, the others it passes on. guards: further outputs of
    `model`; with NaN in one of them the results are not to be trusted.
    """

    model: onnx.ModelProto | None
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    constants: Mapping[str, onnx.TensorProto]
    guards: tuple[str, ...] = ()


def optimize_whole(chain: ExportedChain) -> Part:
    """The DNN as one model with nothing but its own outputs, optimized for this CPU. What ONNX Runtime raises."""
    model = onnx.ModelProto()
    model.CopyFrom(chain.model)
    outputs = {value.name: value for value in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(
        outputs[name] for name in dict.fromkeys((*chain.carried[-1], *chain.guards)) if name in outputs
    )
    (part,) = optimize_parts(ExportedChain(model, chain.carried[-1:], chain.guards))
    return part


def optimize_parts(chain: ExportedChain) -> list[Part]:
    """The DNN cut where its jobs are, optimized for this CPU. What ONNX Runtime raises.

    A node belongs to the first job whose results need it. What crosses a cut may be another value than the job's
    own result: the same in a blocked layout, say.
    """
    model = _optimized(chain.model)
    nodes = list(model.graph.node)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    jobs = _jobs(nodes, makers, chain.carried)
    needed = _ancestors(nodes, makers, chain.carried[-1])
    guards: dict[str, int] = {}
    for name in chain.guards:  # with the last of the nodes that it looks at
        found = _ancestors(nodes, makers, [name])
        guards[name] = max((jobs[index] for index in found & needed), default=0)
        jobs.update((index, guards[name]) for index in found - needed)
        needed |= found
    made = {value.name: -1 for value in model.graph.input if value.name not in constants}
    last_use = dict.fromkeys(chain.carried[-1], len(chain.carried))
    for index in sorted(needed):
        for name in nodes[index].input:
            if name and name not in constants:
                last_use[name] = max(last_use.get(name, -1), jobs[index])
        made.update((name, jobs[index]) for name in nodes[index].output if name)
    carried = [
        tuple(name for name, job in made.items() if job < begin and last_use.get(name, -1) >= begin)
        for begin in range(1, len(chain.carried))
    ]
    _declare(model, {name for names in carried for name in names})
    rows = [chain.inputs, *carried, chain.carried[-1]]
    results = {name: constants[name] for name in chain.carried[-1] if name in constants}
    parts = []
    for job, (takes, gives) in enumerate(pairwise(rows)):
        own = [nodes[index] for index in sorted(needed) if jobs[index] == job]
        is_last = job == len(chain.carried) - 1
        guarded = tuple(name for name, own_job in guards.items() if own_job == job)
        part = _part(model, own, job, (*gives, *guarded)) if own else None
        parts.append(Part(part, takes, gives, results if is_last else {}, guarded))
    return parts


def _declare(model: onnx.ModelProto, names: set[str]) -> None:
    """Add the types of these values where the model does not say them: what its optimizer made has none."""
    graph = model.graph
    names -= {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    if not names:
        return
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(asked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for value in session.get_outputs():
        if value.name in names:
            element = _ELEMENTS[value.type]
            graph.value_info.append(onnx.helper.make_tensor_value_info(value.name, element, None))


def _jobs(nodes: Sequence[onnx.NodeProto], makers: dict[str, int], carried: Sequence[Sequence[str]]) -> dict[int, int]:
    """The job of each node, by index."""
    jobs: dict[int, int] = {}
    for job, names in enumerate(carried):
        for index in _ancestors(nodes, makers, names, stop=jobs):
            jobs[index] = job
    return jobs


def _ancestors(
    nodes: Sequence[onnx.NodeProto],
    makers: dict[str, int],
    names: Sequence[str],
    stop: dict[int, int] | None = None,
) -> set[int]:
    """Indices of the nodes that the values need, without those of `stop` and what these need."""
    found: set[int] = set()
    open_names = list(names)
    while open_names:
        index = makers.get(open_names.pop())
        if index is None or index in found or (stop is not None and index in stop):
            continue
        found.add(index)
        open_names.extend(name for name in nodes[index].input if name)
    return found


def _part(model: onnx.ModelProto, nodes: list[onnx.NodeProto], job: int, gives: Sequence[str]) -> onnx.ModelProto:
    graph = model.graph
    known = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made = dict.fromkeys(name for node in nodes for name in node.output)
    read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
    outputs = [name for name in dict.fromkeys(gives) if name in made]
    part = onnx.helper.make_graph(
        nodes,
        f"job_{job}",
        [_value(name, known) for name in read if name not in constants],
        [_value(name, known) for name in outputs],
        [constants[name] for name in read if name in constants],
        # With shapes ONNX Runtime plans beforehand which values take the place of which.
        value_info=[known[name] for name in made if name in known and name not in outputs],
    )
    return onnx.helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)


def _value(name: str, known: dict[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    return known[name]


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # it warns that the result is made for this CPU, as it should be
    with memory_file("optimized.onnx") as path:
        options.optimized_model_filepath = path
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)
