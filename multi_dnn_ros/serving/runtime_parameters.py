"""The parameters of a DNN that may change while it is served."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig, OutputConfig


def runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name without `dnn.<dnn>.`."""
    settings = config.dnns[dnn]
    values = _runtime_fields(settings)
    for output, own in settings.outputs.items():
        values.update({f"output.{output}.{name}": value for name, value in _runtime_fields(own).items()})
    return values


def _runtime_fields(settings: DnnConfig | OutputConfig) -> dict[str, Any]:
    return {
        name: getattr(settings, name)
        for name, field in type(settings).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("runtime")
    }
