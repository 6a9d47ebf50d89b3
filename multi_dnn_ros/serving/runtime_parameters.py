"""The parameters of a DNN that may change while it is served."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig, OutputConfig
from multi_dnn_ros.settings.section import runtime_fields


def runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name without `dnn.<dnn>.`."""
    settings = config.dnns[dnn]
    values = _values(settings)
    for output, output_settings in settings.outputs.items():
        values.update({f"output.{output}.{name}": value for name, value in _values(output_settings).items()})
    return values


def _values(settings: DnnConfig | OutputConfig) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in runtime_fields(type(settings))}
