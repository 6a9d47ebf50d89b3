"""Inspects a model for `multi-dnn inspect`."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from multi_dnn_ros.backends.registry import BACKENDS, BackendSpec
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.decoders.layout import Layout, shape_text
from multi_dnn_ros.decoders.recognition import Recognition, recognize
from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.graph.trace import TraceError, fold_batch_norms, trace
from multi_dnn_ros.models.decoder_choice import has_shapes, input_size, recognized, run_on_zeros
from multi_dnn_ros.models.dnn import Dnn, Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.label_names import LABEL_SETS, configured_labels
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_header import OnnxHeader, Value, read_onnx_header
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.pipeline.build import make_task
from multi_dnn_ros.pipeline.choices import choose_backend
from multi_dnn_ros.planning.frame_times import run_on_black
from multi_dnn_ros.settings.schema import DnnConfig

#: Name of the DNN in errors.
NAME = "model"
#: Parameters of the DNN -> the arguments of `inspect` that set them.
_ARGUMENTS = {"model": "argument MODEL", "weights": "--weights", "decoder": "--decoder", "labels": "--labels"}
_PARAMETER = re.compile(rf"parameter dnn\.{NAME}\.(\w+)")
_PREFIX = re.compile(rf"dnn\.{NAME}: ")
#: Why a decoder was chosen.
_BY_MODEL = "named by the model"


@dataclass
class Inspection:
    """What was found out about a model.

    problems: a text for each reason why the node cannot serve the model. header: that of an ONNX file. inputs, outputs:
    as text, with names if the file has them. size: (width, height). decoder: its name; empty: none. why: how it was
    chosen, or the nearest decoders. labels_from: "parameter", "model", "decoder", "set coco80" (assumed by their
    number), or "numbers". operators: how often each occurs. macs, parameters: None if unknown. backends: name ->
    outcome on each device. served: whether a backend ran the model. yaml: parameters for the node. dnn: on the CPU;
    None if it cannot be loaded.
    """

    model: str
    problems: list[str] = field(default_factory=list)
    header: OnnxHeader | None = None
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    size: tuple[int, int] | None = None
    decoder: str = ""
    why: str = ""
    result_kind: str = ""
    labels: tuple[str, ...] = ()
    labels_from: str = ""
    operators: dict[str, int] = field(default_factory=dict)
    macs: int | None = None
    parameters: int | None = None
    backends: dict[str, str] = field(default_factory=dict)
    served: bool = False
    yaml: str = ""
    dnn: Dnn | None = None

    @property
    def problem_texts(self) -> list[str]:
        """The problems, with the arguments of the command in place of parameters."""
        return [as_arguments(problem) for problem in self.problems]

    def as_json(self) -> dict[str, Any]:
        """The values of the report of --json."""
        header = self.header
        return {
            "model": self.model,
            "problems": self.problem_texts,
            "producer": header.producer if header else None,
            "opsets": header.opsets if header else None,
            "metadata": header.metadata if header else {},
            "inputs": self.inputs,
            "outputs": self.outputs,
            "input_size": list(self.size) if self.size else None,
            "decoder": self.decoder or None,
            "why": self.why,
            "result_kind": self.result_kind or None,
            "labels": list(self.labels),
            "labels_from": self.labels_from,
            "operators": self.operators,
            "macs": self.macs,
            "parameters": self.parameters,
            "backends": self.backends,
            "yaml": self.yaml,
        }


def as_arguments(message: str) -> str:
    """A message about the parameters of the DNN, as one about the arguments that set them."""
    return _PREFIX.sub("", _PARAMETER.sub(lambda match: _ARGUMENTS.get(match[1], match[0]), message))


def inspect_model(config: DnnConfig, devices: list[torch.device], *, compile_too: bool = False) -> Inspection:
    """Inspect the model of `config`, whose other parameters replace the metadata of the model.

    devices: devices on which backends are tried. compile_too: also try backends that compile for minutes. Raises
    ModelError if the model, or the file that parameter labels names, cannot be read; other problems, also those of an
    ONNX file with a valid header, are in the result.
    """
    result = Inspection(config.model)
    if Path(config.model).suffix.lower() == ".onnx" and Path(config.model).is_file():
        result.header = read_onnx_header(Path(config.model))
        result.operators = result.header.operators
    try:
        source = load_source(NAME, config)
    except ModelError as error:
        if result.header is None:
            raise
        result.problems.append(str(error))
        _add_header(result, config, result.header)
        return result
    _add_source(result, config, source)
    if result.decoder:
        try:
            result.dnn = load_dnn(NAME, _complete(config, result))
        except ModelError as error:
            result.problems.append(str(error))
    traced = _trace(result, source)
    if result.dnn is not None:
        result.result_kind = result.dnn.result_kind
        result.yaml = _yaml(result, config, source)
        for spec in BACKENDS.usable():
            outcome, runs = _try_backend(spec, result.dnn, traced, config, devices, compile_too)
            result.backends[spec.name] = outcome
            result.served = result.served or runs
        result.dnn.module.to("cpu")  # a backend may have moved its weights to a GPU
        if not result.served:
            result.problems.append("no backend of this machine runs the model")
    return result


def _add_header(result: Inspection, config: DnnConfig, header: OnnxHeader) -> None:
    """Add what the header of an ONNX file says, for a file whose network cannot be loaded."""
    result.inputs, result.outputs = ([_text(value) for value in values] for values in (header.inputs, header.outputs))
    images = [value.shape for value in header.inputs if value.shape is not None and len(value.shape) == 4]
    if images and images[0][2] and images[0][3]:
        result.size = (images[0][3], images[0][2])
    if all(value.shape is not None for value in header.outputs):
        layout = Layout(tuple(value.shape or () for value in header.outputs), result.size,
                        len(configured_labels(NAME, config)))  # fmt: skip
        _add_decoder(result, recognize(layout))


def _add_source(result: Inspection, config: DnnConfig, source: Source) -> None:
    size = result.size = input_size(source, config)
    if result.header is not None:
        result.inputs = [_text(value) for value in result.header.inputs]
        result.outputs = [_text(value) for value in result.header.outputs]
    if size is None:
        result.problems.append(f"{config.model} has no input size of its own; give one with --size")
        return
    inputs = (torch.zeros(1, 3, size[1], size[0]),)
    named = config.decoder if config.decoder != "auto" else source.decoder
    classes = 0
    if source.detector is not None:
        result.decoder, result.why = named, _BY_MODEL
    else:
        try:
            known = source.outputs if has_shapes(source) else None
            shapes = known or run_on_zeros(source, config.model, size)
        except ModelError as error:
            result.problems.append(str(error))
            return
        result.outputs = result.outputs or [shape_text(shape) for shape in shapes]
        recognition = recognized(source, NAME, config, shapes)
        if named:
            result.decoder = named
            result.why = "parameter decoder" if config.decoder != "auto" else _BY_MODEL
        else:
            _add_decoder(result, recognition)
        classes = next((found.classes for name, found in recognition.matches if name == result.decoder), 0)
    result.inputs = result.inputs or [shape_text(tuple(inputs[0].shape))]
    _add_labels(result, config, source, classes)
    try:
        counted = cost(source.network, inputs)
        result.macs, result.parameters = counted.macs, counted.parameters
    except (ModelError, RuntimeError) as error:
        result.problems.append(f"MACs cannot be counted: {summarize_error(error)}")


def _trace(result: Inspection, source: Source) -> fx.GraphModule | None:
    """Trace the network once, for the operators and for all backends, with batch norms folded.

    None if nothing needs the graph, or if the network cannot be traced, which is then a problem of the result.
    """
    if result.size is None or (result.dnn is None and result.operators):
        return None
    width, height = result.size
    network = source.network if result.dnn is None else result.dnn.module
    try:
        traced = trace(network, (torch.zeros(1, 3, height, width),))
    except TraceError as error:
        result.problems.append(str(error))
        return None
    if not result.operators:
        names = [str(node.target).removeprefix("aten.") for node in traced.graph.nodes if node.op == "call_function"]
        result.operators = dict(Counter(names).most_common())
    fold_batch_norms(traced)
    return traced


def _add_decoder(result: Inspection, recognition: Recognition) -> None:
    result.decoder, result.why = recognition.chosen, recognition.why
    if recognition.chosen:
        result.result_kind = DECODERS.get(recognition.chosen).result_kind
    else:
        result.problems.append(
            f"{recognition.why}; export it in one of these layouts, or write a decoder (docs/extending.md)"
        )


def _add_labels(result: Inspection, config: DnnConfig, source: Source, classes: int) -> None:
    given = configured_labels(NAME, config)
    fitting = [key for key, names in LABEL_SETS.items() if len(names) == (source.classes or classes)]
    spec = None
    if result.decoder:
        with suppress(ExtensionError):  # load_dnn() names the problem
            spec = DECODERS.get(result.decoder)
    if given:
        result.labels, result.labels_from = given, "parameter"
    elif source.labels:
        result.labels, result.labels_from = source.labels, "model"
    elif spec is not None and spec.default_labels and max(source.classes, classes) <= 1:
        result.labels, result.labels_from = spec.default_labels, "decoder"
    elif fitting:
        result.labels, result.labels_from = LABEL_SETS[fitting[0]], f"set {fitting[0]}"
    elif source.classes or classes:
        result.labels = tuple(f"class_{number}" for number in range(source.classes or classes))
        result.labels_from = "numbers"
    elif result.decoder:
        result.problems.append("the number of classes is unknown: name the classes with --labels")


def _complete(config: DnnConfig, result: Inspection) -> DnnConfig:
    """`config` with the decoder and the class names that were found."""
    keep = config.keep
    if not keep and result.result_kind == "lanes" and len(result.labels) > 2:
        keep = [result.labels[-1]]
    named = result.labels_from.removeprefix("set ")
    labels = [named] if result.labels_from != named else result.labels
    decoder = config.decoder if result.why == _BY_MODEL else result.decoder
    return config.model_copy(update={"decoder": decoder, "labels": tuple(labels), "keep": tuple(keep)})


def _yaml(result: Inspection, config: DnnConfig, source: Source) -> str:
    """The parameters that serve this model, with a comment on what was assumed."""
    complete = _complete(config, result)
    role = {"lanes": "lane", "detections": "object"}.get(result.result_kind, result.result_kind or "object")
    model = str(Path(config.model).absolute()) if Path(config.model).is_file() else config.model
    lines = [f"role: {role}", f"model: {json.dumps(model)}"]
    if config.weights != "default":
        lines.append(f"weights: {json.dumps(config.weights)}")
    if config.decoder != "auto" or not source.decoder:
        lines.append(f"decoder: {complete.decoder}")
    if result.labels_from not in ("model", "decoder"):
        listed = f"labels: [{', '.join(map(json.dumps, complete.labels))}]"
        assumed = {"numbers": "  # the file has no names", "parameter": ""}
        lines.append(listed + assumed.get(result.labels_from, "  # assumed, as the file has no names"))
    if complete.keep:
        listed = f"keep: [{', '.join(map(json.dumps, complete.keep))}]"
        lines.append(listed + ("" if config.keep else "  # assumed: which of the classes are lanes"))
    if result.size is not None and result.size != source.size:
        lines += [f"input_width: {result.size[0]}", f"input_height: {result.size[1]}"]
    body = "\n".join(f"        {line}" for line in lines)
    return f"/**:\n  ros__parameters:\n    dnns: [{role}]\n    dnn:\n      {role}:\n{body}\n"


def _try_backend(
    spec: BackendSpec, dnn: Dnn, traced: fx.GraphModule | None, config: DnnConfig, devices: list[torch.device],
    compile_too: bool,
) -> tuple[str, bool]:  # fmt: skip
    """Run the DNN on a black image with this backend, on each device that it supports.

    Returns the outcome on each of them as text, and whether it ran on any.
    """
    if traced is None:
        return "not tried: it needs a traced network", False
    found, runs = [], False
    for device in devices:
        if device.type not in spec.precisions:
            continue
        if spec.compiles and not compile_too:
            found.append(f"{device}: not tried, as it compiles for minutes (--compile tries it)")
            continue
        with _warnings() as warnings:
            try:
                _run_black(spec, dnn, traced, config, device)
                text, runs = "runs", True
            except Exception as error:  # whatever a backend or a compiler raises
                text = f"fails: {type(error).__name__}: {summarize_error(error)}"
        found.append("; ".join([f"{device}: {text}", *dict.fromkeys(warnings)]))
    return "; ".join(found) or f"not tried: no {' or '.join(spec.precisions)} here", runs


def _run_black(spec: BackendSpec, dnn: Dnn, traced: fx.GraphModule, config: DnnConfig, device: torch.device) -> None:
    backend = choose_backend(spec.name, device, dnn=NAME)
    config = config.model_copy(update={"backend": spec.name})
    task = make_task(dnn, config, ("camera",), backend, device, traced=traced)
    run_on_black(task, device, *task.enlarge_to_min((dnn.preprocess.height, dnn.preprocess.width)))


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings of the package instead of printing them."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("multi_dnn_ros"), Lines(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def _text(value: Value) -> str:
    shape = shape_text(value.shape) if value.shape is not None else "of unknown shape"
    return f"{value.name} {shape} {value.dtype}"
