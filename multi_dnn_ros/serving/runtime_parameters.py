"""The parameters of a DNN that may change while it is served."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.settings.schema import NodeConfig


def runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name."""
    settings = config.dnns[dnn]
    return {
        name: getattr(settings, name)
        for name, field in type(settings).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("runtime")
    }
