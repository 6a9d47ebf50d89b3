"""Class names of the results of a DNN with parameter `outputs`."""

from __future__ import annotations

import pytest
from torch import nn

from multi_dnn_ros.common.extensions import DECODERS, names
from multi_dnn_ros.decoders.registry import DECODERS as REGISTRY
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.load import results_of
from multi_dnn_ros.settings.schema import DnnConfig, OutputConfig


def labels_of(decoder: str, *, of_dnn: list[str], of_output: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Parameter `labels` of a result, and the names that the model has for it."""
    output = OutputConfig(decoder=decoder, labels=of_output)
    config = DnnConfig(role="network", model="net.onnx", labels=of_dnn, outputs={"one": output})
    part = results_of(Source(nn.Identity(), (64, 32), "", ("a", "b")), "road", config)["one"]
    return list(part.config.labels), part.source.labels


@pytest.mark.parametrize("decoder", names(DECODERS))
def test_only_lines_and_areas_have_the_names_of_their_decoder(decoder: str) -> None:
    spec = REGISTRY.get(decoder)
    own = list(spec.default_labels) if spec.result_kind in ("lanes", "drivable_area") else []
    assert labels_of(decoder, of_dnn=["car"], of_output=[])[0] == (own or ["car"])
    assert labels_of(decoder, of_dnn=[], of_output=[]) == (own, () if own else ("a", "b"))
    assert labels_of(decoder, of_dnn=["car"], of_output=["bus"]) == (["bus"], ())
