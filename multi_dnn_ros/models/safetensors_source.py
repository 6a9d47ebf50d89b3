"""Model source of .safetensors artifacts of `multi-dnn decompose` and `retrain`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from multi_dnn_ros.models.artifact import read_description
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import MODEL_SOURCES, ModelRequest, source_of
from multi_dnn_ros.models.weights import load_weights, read_state_dict
from multi_dnn_ros.settings.schema import DnnConfig


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
        original=description.model if description.plan else "",
    )
