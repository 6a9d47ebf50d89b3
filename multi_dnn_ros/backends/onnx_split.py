"""An ONNX model optimized by ONNX Runtime, whole or cut into one part per stage.

The model is optimized first and cut afterwards. Convolutions then keep their blocked layout across a cut, and the parts
and the whole have the same reordered weights, so that they can share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx
import onnxruntime

from multi_dnn_ros.backends.onnx_export import ExportedChain, memory_file

#: Element types of tensors, by ONNX Runtime's names.
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
    """Consecutive nodes of an optimized model. model: None if the stage has no node of its own.

    takes, gives: names of the values carried into and out of the part, in order. Those in `gives` are outputs of
    `model`, `constants`, or passed on from `takes`. guards: further outputs of `model`; NaN in one of them makes the
    results invalid.
    """

    model: onnx.ModelProto | None
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    constants: Mapping[str, onnx.TensorProto]
    guards: tuple[str, ...] = ()


def optimize_whole(chain: ExportedChain, *, standard_operators: bool = False) -> Part:
    """The whole DNN with only its final outputs; see optimize_parts."""
    model = onnx.ModelProto()
    model.CopyFrom(chain.model)
    outputs = {value.name: value for value in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(
        outputs[name] for name in dict.fromkeys((*chain.carried[-1], *chain.guards)) if name in outputs
    )
    whole = ExportedChain(model, chain.carried[-1:], chain.guards)
    (part,) = optimize_parts(whole, standard_operators=standard_operators)
    return part


def optimize_parts(chain: ExportedChain, *, standard_operators: bool = False) -> list[Part]:
    """The DNN as one part per stage, optimized for this CPU. Raises what ONNX Runtime raises.

    standard_operators: only optimize so that operators of the ONNX standard remain, which every execution provider
    reads.

    A node belongs to the first stage whose results need it. A value carried over a cut may differ from the stage's own
    result, for example by a blocked layout.
    """
    model = _optimize(chain.model, standard_operators=standard_operators)
    nodes = list(model.graph.node)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    jobs = _jobs(nodes, makers, chain.carried)
    needed = _ancestors(nodes, makers, chain.carried[-1])
    guards: dict[str, int] = {}
    for name in chain.guards:  # each belongs to the stage of the last node that it depends on
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
    """Declare the types of these values in the model, because values created by the optimizer have none."""
    graph = model.graph
    names -= {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    if not names:
        return
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(names))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for value in session.get_outputs():
        if value.name in names:
            element = _ELEMENTS[value.type]
            graph.value_info.append(onnx.helper.make_tensor_value_info(value.name, element, None))


def _jobs(nodes: Sequence[onnx.NodeProto], makers: dict[str, int], carried: Sequence[Sequence[str]]) -> dict[int, int]:
    """The stage number of each node, by index."""
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
    """Indices of the nodes that compute the values, without those in `stop` and their ancestors."""
    found: set[int] = set()
    pending = list(names)
    while pending:
        index = makers.get(pending.pop())
        if index is None or index in found or (stop is not None and index in stop):
            continue
        found.add(index)
        pending.extend(name for name in nodes[index].input if name)
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
        # With shapes ONNX Runtime plans memory reuse ahead.
        value_info=[known[name] for name in made if name in known and name not in outputs],
    )
    return onnx.helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)


def _value(name: str, known: dict[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    return known[name]


def _optimize(model: onnx.ModelProto, *, standard_operators: bool) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    if standard_operators:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # no warning that the result is specific to this CPU
    with memory_file("optimized.onnx") as path:
        options.optimized_model_filepath = path
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)
