"""Model source of the built-in networks: `builtin:<name>`."""

from __future__ import annotations

import json
from dataclasses import replace

from multi_dnn_ros.models import networks
from multi_dnn_ros.models.artifact import read_description
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.own_sources import BUILTIN
from multi_dnn_ros.models.registry import ModelRequest
from multi_dnn_ros.models.safetensors_source import rebuilt_source
from multi_dnn_ros.models.weights import load_weights, read_state_dict


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
