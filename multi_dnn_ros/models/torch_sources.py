"""Model sources that need PyTorch: `builtin:<name>`, .safetensors artifacts of `multi-dnn decompose` and `retrain`, and
.pt2 files of torch.export.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.export.passes import move_to_device_pass

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models import networks
from multi_dnn_ros.models.artifact import read_description
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import BUILTIN, MODEL_SOURCES, ModelRequest, source_of
from multi_dnn_ros.models.weights import check_archive, check_stored, load_weights, no_pickles, read_state_dict
from multi_dnn_ros.settings.schema import DnnConfig

#: Their arguments are (input, probability, whether in training).
_DROPOUTS = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default)


def builtin_source(request: ModelRequest) -> Source:
    """One of the built-in networks. Raises ModelError."""
    from safetensors import safe_open

    model = request.name
    assert BUILTIN.file is not None
    path = BUILTIN.file(model)
    if read_description(path) is not None:
        return replace(rebuilt_source(replace(request, name=str(path))), score_threshold=SCORE_THRESHOLDS[model])
    weights = read_state_dict(path)
    with safe_open(path, "pt") as file:
        header = {key: json.loads(value) for key, value in file.metadata().items()}
    module = networks.build(header["architecture"], header["arguments"])
    load_weights(module, weights, str(path))
    width, height = header["input_size"]
    labels = tuple(header["labels"])
    return Source(
        module.eval(),
        (width, height),
        header["decoder"],
        labels,
        fixed_size=True,
        classes=len(labels),
        score_threshold=SCORE_THRESHOLDS[model],
    )


def rebuilt_source(request: ModelRequest) -> Source:
    """The network of an artifact: built from its model's name, decomposed by its plan, with its weights.

    Raises ModelError for a file that is not an artifact, is damaged, or whose model cannot be rebuilt.
    """
    path = Path(request.name)
    description = read_description(path)
    if description is None:
        raise ModelError(
            f"{request.where}model is '{path}', a plain file of weights; expected one of multi-dnn decompose. Name "
            "the torchvision builder as the model and this file as its weights"
        )
    origin = source_of(description.model)
    if origin is None or not origin.rebuilds:
        allowed = ", ".join(f"{each.name}:..." for each in MODEL_SOURCES.usable() if each.rebuilds)
        raise ModelError(f"{path}: header field model is '{description.model}'; allowed: {allowed}")
    weights = "random" if origin.takes_weights else "default"  # replaced below by the weights in the file
    config = DnnConfig(role="network", model=description.model, weights=weights, num_classes=description.num_classes)
    name = description.model.partition(":")[2]
    source = origin.load(ModelRequest(f"{path}: header field ", name, config, classifiers=True))
    if source.decoder == "classification" and not request.classifiers:
        raise ModelError(
            f"{request.where}model is '{path}', made from {description.model}, a classifier; allowed: detectors and "
            "segmentation networks"
        )
    if source.fixed_size and source.size != description.input_size:
        raise ModelError(
            f"{path}: header field input_size is {list(description.input_size)}; expected {list(source.size or ())}, "
            f"which {description.model} is made for"
        )
    if source.description is not None and source.description.plan:
        raise ModelError(f"{path}: header field model is '{description.model}', which is decomposed itself")
    apply_plan(source.module, description.plan, f"{path}: header field plan")
    load_weights(source.module, read_state_dict(path), str(path))
    return replace(
        source,
        module=source.module.eval(),
        size=description.input_size,
        labels=description.labels or source.labels,
        description=description,
    )


def exported_source(request: ModelRequest) -> Source:
    """The network of an exported program, on the CPU, whatever device it was exported on.

    Raises ModelError for a file that is damaged, unsafe, exported in training mode, or exported on a GPU if this
    machine has none: call .cpu() on the network before torch.export.export.
    """
    path = Path(request.name)
    try:
        check_stored(path)
        check_archive(path)
        with no_pickles():
            program = torch.export.load(path)
        if any(tensor.device.type != "cpu" for tensor in (*program.state_dict.values(), *program.constants.values())):
            program = move_to_device_pass(program, "cpu")  # backends expect a network on the CPU
        description = read_description(path)
        module = program.module(check_guards=False)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as an exported program: {summarize_error(error)}") from None
    _check_mode(path, program.graph)
    shapes = [
        tuple(axis if isinstance(axis, int) else 0 for axis in node.meta["val"].shape)  # 0: a free axis
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    for part in module.modules():  # exported modules reject eval(); their mode was fixed at export
        part.training = False
    size = _image_size(path, shapes)
    if description is None:
        return Source(module, size, "", fixed_size=size is not None)
    return Source(
        module, size, description.decoder, description.labels, {**description.preprocess}, fixed_size=size is not None,
        description=description, classes=len(description.labels),
    )  # fmt: skip


def _check_mode(path: Path, graph: torch.fx.Graph) -> None:
    """Raise ModelError for active dropout and for batch norms that use the statistics of the batch."""
    active = {
        str(node.target).split(".")[1]
        for node in graph.nodes
        if (node.target in _DROPOUTS and len(node.args) > 2 and node.args[1] and node.args[2])
        or (node.target is torch.ops.aten.batch_norm.default and node.args[3] is not None and node.args[5])
    }
    if active:
        raise ModelError(
            f"{path}: was exported in training mode ({', '.join(sorted(active))} active); call eval() on the network "
            "before torch.export.export"
        )


def _image_size(path: Path, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int] | None:
    """(width, height) of the only input, an image; None: free. 0 in `shapes` is a free axis."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, 0) or shapes[0][0] not in (1, 0):
        raise ModelError(f"{path}: takes inputs of shapes {list(shapes)}; allowed: one image (1, 3, height, width)")
    _, _, height, width = shapes[0]
    return (width, height) if width and height else None
