"""Where a DNN comes from: our own, torchvision's builders, exported programs, ONNX files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.models import networks
from multi_dnn_ros.models.artifact import Description, is_built_from_a_name, read_description
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.dnn import ModelError, Source
from multi_dnn_ros.models.exported_archive import UnsafeArchive, check_archive
from multi_dnn_ros.models.onnx_shapes import fix_shapes
from multi_dnn_ros.models.torchvision_source import torchvision_source
from multi_dnn_ros.models.weights import check_stored, existing_file, load_weights, no_pickles, read_state_dict
from multi_dnn_ros.reasons import reason_of
from multi_dnn_ros.schema import DnnConfig

#: Of an input image, in pixels; as the parameters input_width and input_height.
_MAX_SIDE = 8192
#: (input, probability, whether in training).
_DROPOUTS = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default, torch.ops.aten.feature_dropout.default)
_WEIGHTS = Path(__file__).resolve().parents[1] / "weights"


def load_source(name: str, config: DnnConfig) -> Source:
    """The network of parameter `dnn.<name>.model` with its weights. ModelError."""
    return _load(f"parameter dnn.{name}.", config, classifiers=False)


def load_network(model: str, *, weights: str = "default", num_classes: int = 0) -> Source:
    """The network that an offline verb works on: whatever the node takes, and torchvision's classifiers. ModelError.

    weights, num_classes: as the parameters dnn.<dnn>.weights and num_classes.
    """
    config = DnnConfig(role="object", model=model, weights=weights, num_classes=num_classes)
    return _load("argument ", config, classifiers=True)


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


def _load(where: str, config: DnnConfig, *, classifiers: bool) -> Source:
    kind, _, rest = config.model.partition(":")
    if kind == "torchvision":
        return torchvision_source(where, rest, config, classifiers=classifiers)
    if config.weights not in ("default", ""):
        raise ModelError(
            f"{where}weights is '{config.weights}'; allowed with {config.model}: default, as the weights "
            "are part of the model"
        )
    if kind == "builtin":
        return _builtin(where, rest, classifiers)
    suffix = Path(config.model).suffix.lower()
    loaders: dict[str, Callable[[Path], Source]] = {".pt2": _exported, ".onnx": _onnx}
    if suffix not in (*loaders, ".safetensors"):
        raise ModelError(
            f"{where}model is '{config.model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}, "
            "torchvision:<builder>, a .safetensors file of multi-dnn decompose or retrain, a .pt2 file, an .onnx file"
        )
    path = existing_file(config.model, f"{where}model")
    source = loaders[suffix](path) if suffix in loaders else _rebuilt(where, path, classifiers)
    if config.num_classes and source.labels and config.num_classes != len(source.labels):
        raise ModelError(f"{where}num_classes is {config.num_classes}, but {path} has {len(source.labels)} classes")
    return source


def _rebuilt(where: str, path: Path, classifiers: bool) -> Source:
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
        source = _builtin(f"{path}: header field ", builder, classifiers)
    else:
        config = DnnConfig(
            role="object", model=description.model, weights="random", num_classes=description.num_classes
        )
        source = torchvision_source(f"{path}: header field ", builder, config, classifiers=True)
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
    load_weights(source.module, read_state_dict(path), str(path))
    labels = description.labels or source.labels
    return replace(
        source, module=source.module.eval(), size=description.input_size, labels=labels, description=description
    )


def _builtin_names() -> list[str]:
    return sorted(path.stem for path in _WEIGHTS.glob("*.safetensors"))


def _builtin(where: str, model: str, classifiers: bool) -> Source:
    from safetensors import safe_open

    if model not in _builtin_names():
        raise ModelError(f"{where}model is 'builtin:{model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}")
    path = _WEIGHTS / f"{model}.safetensors"
    if read_description(path) is not None:
        return replace(_rebuilt(where, path, classifiers), score_threshold=SCORE_THRESHOLDS[model])
    weights = read_state_dict(path)
    with safe_open(path, "pt") as file:
        header = {key: json.loads(value) for key, value in file.metadata().items()}
    module = networks.build(header["architecture"], header["arguments"])
    load_weights(module, weights, str(path))
    width, height = header["input_size"]
    return Source(
        module.eval(),
        (width, height),
        header["decoder"],
        tuple(header["labels"]),
        fixed_size=True,
        score_threshold=SCORE_THRESHOLDS[model],
    )


def _exported(path: Path) -> Source:
    try:
        check_stored(path)
        check_archive(path)
        with no_pickles():
            program = torch.export.load(path)
        description = read_description(path)
        module: nn.Module = program.module(check_guards=False)
    except ModelError:
        raise
    except UnsafeArchive as error:
        raise ModelError(f"{path}: refused, as loading it could run code: it {error}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as an exported program: {reason_of(error)}") from None
    _check_mode(path, program.graph)
    shapes = [
        tuple(axis if isinstance(axis, int) else 0 for axis in node.meta["val"].shape)  # symbolic: free
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    for part in module.modules():  # exported modules refuse eval(); what they compute was fixed at export
        part.training = False
    size = _image_size(path, shapes)
    labels = description.labels if description is not None else ()
    return Source(module, size, "", labels, fixed_size=size is not None, description=description)


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


def _onnx(path: Path) -> Source:
    import onnx
    import onnx2torch

    try:
        model = onnx.load(path)
        module = onnx2torch.convert(model).eval()
        fix_shapes(module)
    except NotImplementedError as error:
        raise ModelError(f"{path}: an operator that onnx2torch does not have: {reason_of(error)}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {reason_of(error)}") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    shapes = [
        tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in model.graph.input
        if value.name not in constants
    ]
    size = _image_size(path, shapes)
    return Source(module, size, "", fixed_size=size is not None)


def _image_size(path: Path, shapes: list[tuple[Any, ...]]) -> tuple[int, int] | None:
    """(width, height) of the one image input, None where they are free; 0 in `shapes` is a free axis."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, 0) or shapes[0][0] not in (1, 0):
        raise ModelError(f"{path}: takes inputs of shapes {shapes}; allowed: one image (1, 3, height, width)")
    _, _, height, width = shapes[0]
    if not isinstance(height, int) or not isinstance(width, int) or not height or not width:
        return None
    if max(width, height) > _MAX_SIDE:
        raise ModelError(f"{path}: takes images of {width} x {height}; allowed: at most {_MAX_SIDE} x {_MAX_SIDE}")
    return width, height
