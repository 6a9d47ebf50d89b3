"""Loads networks by the names of their models."""

from __future__ import annotations

from pathlib import Path

from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_form import onnx_form
from multi_dnn_ros.models.registry import MODEL_SOURCES, ModelRequest, existing_file, source_name, source_of
from multi_dnn_ros.settings.schema import DnnConfig


def load_source(name: str, config: DnnConfig, *, onnx: bool = False) -> Source:
    """The network of parameter `dnn.<name>.model` with its weights. Raises ModelError.

    onnx: an OnnxNetwork is preferred to a PyTorch module.
    """
    return _load(f"parameter dnn.{name}.", config, classifiers=False, onnx=onnx)


def load_network(
    model: str, *, weights: str = "default", num_classes: int = 0, size: tuple[int, int] | None = None
) -> Source:
    """The network for an offline verb: what the node accepts, and torchvision's classifiers. Raises ModelError.

    weights, num_classes: as the parameters dnn.<dnn>.weights and num_classes. size: (width, height) for a file that
    leaves it free.
    """
    width, height = size or (0, 0)
    config = DnnConfig(
        role="network", model=model, weights=weights, num_classes=num_classes, input_width=width, input_height=height
    )
    source = _load("argument ", config, classifiers=True)
    if num_classes and source.classes and num_classes != source.classes:
        raise ModelError(f"argument num_classes is {num_classes}, but {model} has {source.classes} classes")
    return source


def weights_file(model: str) -> Path | None:
    """Path of the file of `model`; None: unknown, or there is no such file."""
    source = source_of(model)
    path = Path(model) if source is None or source.file is None else Path(source.file(model.partition(":")[2]))
    return path if path.is_file() else None


def _load(where: str, config: DnnConfig, *, classifiers: bool, onnx: bool = False) -> Source:
    name = source_name(config.model)
    if not name:
        allowed = ", ".join(source.form for source in MODEL_SOURCES.usable())
        raise ModelError(f"{where}model is '{config.model}'; allowed: {allowed}")
    try:
        source = MODEL_SOURCES.get(name)
    except ExtensionError as error:
        raise ModelError(f"{where}model is '{config.model}': {error}") from None
    if not source.takes_weights and config.weights not in ("default", ""):
        raise ModelError(
            f"{where}weights is '{config.weights}'; allowed with {config.model}: default, as the weights "
            "are part of the model"
        )
    is_file = name.startswith(".")
    rest = str(existing_file(config.model, f"{where}model")) if is_file else config.model.partition(":")[2]
    request = ModelRequest(where, rest, config, classifiers, onnx)
    return onnx_form(source, request) if onnx and not source.is_onnx else source.load(request)
