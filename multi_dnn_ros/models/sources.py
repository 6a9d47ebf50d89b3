"""Where a DNN comes from: our own, torchvision's builders, exported programs, ONNX files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models import networks
from multi_dnn_ros.models.artifact import Description, is_built_from_a_name, read_description
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.exported_archive import UnsafeArchive, check_archive, stored_shapes
from multi_dnn_ros.models.onnx_file import check_external_data, check_operators
from multi_dnn_ros.models.onnx_shapes import fix_shapes
from multi_dnn_ros.models.torchvision_source import torchvision_source
from multi_dnn_ros.models.weights import (
    check_stored,
    check_weights,
    existing_file,
    load_weights,
    no_pickles,
    read_state_dict,
)
from multi_dnn_ros.settings.schema import DnnConfig

#: Of an input image, in pixels; as the parameters input_width and input_height.
_MAX_SIDE = 8192
#: (input, probability, whether in training).
_DROPOUTS = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default)
_WEIGHTS = Path(__file__).resolve().parents[1] / "weights"


def load_source(name: str, config: DnnConfig) -> Source:
    """The network of parameter `dnn.<name>.model` with its weights. ModelError."""
    return _load(f"parameter dnn.{name}.", config, classifiers=False)


def outline_source(name: str, config: DnnConfig) -> Source:
    """What `load_source` would give, by the headers of its files. ModelError for all that they show to be wrong.

    Its module holds no values: it is on the meta device, or without layers where the network comes as a file (.pt2,
    .onnx). What only the values, or running the network, can show is left to `load_source` and `load_dnn`.
    """
    return _load(f"parameter dnn.{name}.", config, classifiers=False, outline=True)


def load_network(model: str, *, weights: str = "default", num_classes: int = 0) -> Source:
    """The network that an offline verb works on: whatever the node takes, and torchvision's classifiers. ModelError.

    weights, num_classes: as the parameters dnn.<dnn>.weights and num_classes.
    """
    config = DnnConfig(role="object", model=model, weights=weights, num_classes=num_classes)
    source = _load("argument ", config, classifiers=True)
    if num_classes and source.classes and num_classes != source.classes:
        raise ModelError(f"argument num_classes is {num_classes}, but {model} has {source.classes} classes")
    return source


def load_artifact(path: Path) -> tuple[nn.Module, Description]:
    """The network of a file that :func:`multi_dnn_ros.models.artifact.save_artifact` wrote, in eval mode on the CPU.

    Rebuilt from the model's name and plan (.safetensors) or read as an exported program (.pt2). ModelError names the
    file, the key and what is expected; a file of another origin is refused.
    """
    source = load_network(str(path))
    if source.description is None:
        raise ModelError(f"{path}: was not written by multi-dnn decompose; expected one of their files")
    return source.module, source.description


def weights_file(model: str) -> Path | None:
    """The file that `builtin:<name>` is loaded from, or `model` itself where that is a file; None: neither."""
    kind, _, name = model.partition(":")
    path = _WEIGHTS / f"{name}.safetensors" if kind == "builtin" else Path(model)
    return path if path.is_file() else None


def _load(where: str, config: DnnConfig, *, classifiers: bool, outline: bool = False) -> Source:
    kind, _, rest = config.model.partition(":")
    if kind == "torchvision":
        return torchvision_source(where, rest, config, classifiers=classifiers, outline=outline)
    if config.weights not in ("default", ""):
        raise ModelError(
            f"{where}weights is '{config.weights}'; allowed with {config.model}: default, as the weights "
            "are part of the model"
        )
    if kind == "builtin":
        return _builtin(where, rest, classifiers, outline)
    suffix = Path(config.model).suffix.lower()
    loaders: dict[str, Callable[[Path, bool], Source]] = {".pt2": _exported, ".onnx": _onnx}
    if suffix not in (*loaders, ".safetensors"):
        raise ModelError(
            f"{where}model is '{config.model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}, "
            "torchvision:<builder>, a .safetensors file of multi-dnn decompose or retrain, a .pt2 file, an .onnx file"
        )
    path = existing_file(config.model, f"{where}model")
    return loaders[suffix](path, outline) if suffix in loaders else _rebuilt(where, path, classifiers, outline)


def _rebuilt(where: str, path: Path, classifiers: bool, outline: bool) -> Source:
    """The network of an artifact: built as its source was, its layers replaced after its plan, and filled."""
    description = read_description(path)
    if description is None:
        raise ModelError(
            f"{where}model is '{path}', a plain file of weights; expected one of multi-dnn decompose. Name "
            "the torchvision builder as the model and this file as its weights"
        )
    kind, _, builder = description.model.partition(":")
    if not is_built_from_a_name(description.model):
        raise ModelError(f"{path}: header field model is '{description.model}'; allowed: builtin:..., torchvision:...")
    if kind == "builtin":
        source = _builtin(f"{path}: header field ", builder, classifiers, outline)
    else:
        config = DnnConfig(
            role="object", model=description.model, weights="random", num_classes=description.num_classes
        )
        source = torchvision_source(f"{path}: header field ", builder, config, classifiers=True, outline=outline)
        if source.decoder == "classification" and not classifiers:
            raise ModelError(
                f"{where}model is '{path}', made from {description.model}, a classifier; allowed: detectors and "
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
    (check_weights if outline else load_weights)(source.module, read_state_dict(path, shapes_only=outline), str(path))
    return replace(
        source,
        module=source.module.eval(),
        size=description.input_size,
        labels=description.labels or source.labels,
        description=description,
    )


def _builtin_names() -> list[str]:
    return sorted(path.stem for path in _WEIGHTS.glob("*.safetensors"))


def _builtin(where: str, model: str, classifiers: bool, outline: bool) -> Source:
    from safetensors import safe_open

    if model not in _builtin_names():
        raise ModelError(f"{where}model is 'builtin:{model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}")
    path = _WEIGHTS / f"{model}.safetensors"
    if read_description(path) is not None:
        return replace(_rebuilt(where, path, classifiers, outline), score_threshold=SCORE_THRESHOLDS[model])
    weights = read_state_dict(path, shapes_only=outline)
    with safe_open(path, "pt") as file:
        header = {key: json.loads(value) for key, value in file.metadata().items()}
    with torch.device("meta") if outline else contextlib.nullcontext():
        module = networks.build(header["architecture"], header["arguments"])
    (check_weights if outline else load_weights)(module, weights, str(path))
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


def _exported(path: Path, outline: bool) -> Source:
    try:
        check_stored(path)
        check_archive(path)
        stored = stored_shapes(path) if outline else None
        if stored is not None:
            return _of_file(path, nn.Module(), *stored, read_description(path))
        with no_pickles():
            program = torch.export.load(path)
        description = read_description(path)
        module: nn.Module = program.module(check_guards=False)
    except ModelError:
        raise
    except UnsafeArchive as error:
        raise ModelError(f"{path}: refused, as loading it could run code: it {error}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as an exported program: {summarize_error(error)}") from None
    _check_mode(path, program.graph)
    shapes = [
        tuple(axis if isinstance(axis, int) else 0 for axis in node.meta["val"].shape)  # symbolic: free
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    for part in module.modules():  # exported modules refuse eval(); what they compute was fixed at export
        part.training = False
    return _of_file(path, module, shapes, None, description)


def _of_file(
    path: Path,
    module: nn.Module,
    inputs: Sequence[tuple[Any, ...]],
    outputs: Sequence[tuple[int, ...]] | None,
    description: Description | None = None,
) -> Source:
    """A network that came as a file, by the shapes of its inputs and, where they are known, outputs."""
    size = _image_size(path, inputs)
    labels = description.labels if description is not None else ()
    return Source(
        module, size, "", labels, fixed_size=size is not None, description=description, classes=len(labels),
        outputs=None if outputs is None else tuple(outputs),
    )  # fmt: skip


def _check_mode(path: Path, graph: torch.fx.Graph) -> None:
    """ModelError for what answers by chance or by what else is in the batch, as a network does while it is trained."""
    at_work = {
        str(node.target).split(".")[1]
        for node in graph.nodes
        if (node.target in _DROPOUTS and len(node.args) > 2 and node.args[1] and node.args[2])
        or (node.target is torch.ops.aten.batch_norm.default and node.args[3] is not None and node.args[5])
    }
    if at_work:
        raise ModelError(
            f"{path}: was exported in training mode ({', '.join(sorted(at_work))} at work); call eval() on the network "
            "before torch.export.export"
        )


def _onnx(path: Path, outline: bool) -> Source:
    try:
        with optional(f"{path}: an ONNX file"):
            import onnx
            import onnx2torch
    except MissingExtra as error:
        raise ModelError(str(error)) from None
    module: Any = nn.Module()
    try:
        model = onnx.load(path, load_external_data=not outline)
        if outline:
            check_operators(model)
            check_external_data(model, path.parent)
        else:
            module = onnx2torch.convert(model).eval()
            fix_shapes(module)
    except NotImplementedError as error:
        raise ModelError(f"{path}: an operator that onnx2torch does not have: {summarize_error(error)}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {summarize_error(error)}") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs, outputs = (
        [
            tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
            for value in values
            if value.name not in constants
        ]
        for values in (model.graph.input, model.graph.output)
    )
    # A network without shapes for its outputs is valid.
    return _of_file(path, module, inputs, outputs if all(outputs) else None)


def _image_size(path: Path, shapes: Sequence[tuple[Any, ...]]) -> tuple[int, int] | None:
    """(width, height) of the one image input, None where they are free; 0 in `shapes` is a free axis."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, 0) or shapes[0][0] not in (1, 0):
        raise ModelError(f"{path}: takes inputs of shapes {list(shapes)}; allowed: one image (1, 3, height, width)")
    _, _, height, width = shapes[0]
    if not isinstance(height, int) or not isinstance(width, int) or not height or not width:
        return None
    if max(width, height) > _MAX_SIDE:
        raise ModelError(f"{path}: takes images of {width} x {height}; allowed: at most {_MAX_SIDE} x {_MAX_SIDE}")
    return width, height
