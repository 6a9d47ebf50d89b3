"""Options of the command line that replace parameters of the node."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.parameter_fields import ParameterError, fields_of, shown
from multi_dnn_ros.settings.schema import NodeConfig


def with_options(config: NodeConfig, **changes: Any) -> NodeConfig:
    """`config` with other values. changes: values by parameter, whose option has the same name without the unit.

    Raises UsageError, which names the option, for a value that is not allowed.
    """
    fields = fields_of(NodeConfig)
    for name, value in changes.items():
        try:
            fields[name].checked(name, value)
        except ParameterError:
            option = name.removesuffix("_s").replace("_", "-")
            raise UsageError(f"--{option} is {shown(value)}; allowed: {fields[name].allowed}") from None
    return NodeConfig.model_validate({**config.model_dump(), **changes})
