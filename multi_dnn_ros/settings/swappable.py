"""The parameters of a DNN that may change while it is served, by a swap of its engine process (docs/model_swap.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.existing_path import path_problem
from multi_dnn_ros.settings.parameter_fields import shown

#: Parameters of a DNN on which subscriptions, publishers or the division among devices depend.
_FIXED = (
    "role",
    "cameras",
    "outputs",
    "device",
    "track",
    "track_across_classes",
    "track_low_score",
    "track_max_lost_s",
)
_OF_DNN = re.compile(r"^dnn\.\w+\.(?:output\.\w+\.)?(\w+)$")
#: Parameters that may name a file, and the suffixes of such a file.
_FILES = {
    "model": (".pt2", ".onnx", ".safetensors"),
    "check_against": (".pt2", ".onnx", ".safetensors"),
    "weights": (".safetensors", ".pth", ".pt"),
}
_FOLDERS = ("calibration_images", "check_images")


def is_swappable(name: str) -> bool:
    """Whether the parameter of this ROS name belongs to a DNN and can change by a swap; also true for its runtime
    parameters, which need no swap.
    """
    match = _OF_DNN.fullmatch(name)
    return match is not None and match[1] not in _FIXED


def missing_file(name: str, value: Any) -> str:
    """The problem if the parameter names a file or folder that does not exist, otherwise an empty string."""
    field = name.rpartition(".")[2]
    if not isinstance(value, str) or not value:
        return ""
    if field in _FOLDERS:
        problem = path_problem(value, "folder")
    elif ":" not in value and Path(value).suffix.lower() in _FILES.get(field, ()):
        problem = path_problem(value, "file")
    else:
        return ""
    return f"parameter {name} is {shown(value)}: {problem}" if problem else ""
