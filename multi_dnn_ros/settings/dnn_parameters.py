"""The parameters of a DNN by their names below ``dnn.<dnn>.``."""

from __future__ import annotations

from typing import Any

from multi_dnn_ros.settings.schema import DnnConfig

#: Parameters of a DNN that have no effect if it has outputs, which have these parameters themselves.
REPLACED_BY_OUTPUTS = ("decoder", "keep", "score_threshold", "iou_threshold", "max_detections")


def assign(settings: DnnConfig, name: str, value: Any) -> tuple[str, str]:
    """Set a parameter of a DNN, or of one of its outputs: `output.<output>.<field>`.

    Returns the name of the output ("" for the DNN itself) and that of the field. Has no effect for an output that the
    DNN does not have.
    """
    output, field = "", name
    if name.startswith("output."):
        _, output, field = name.split(".", 2)
    target = settings.outputs.get(output) if output else settings
    if target is not None:
        setattr(target, field, value)
    return output, field
