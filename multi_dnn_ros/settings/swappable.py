"""The parameters of a DNN that may change while it is served, by a swap of its engine process (docs/isolation.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from multi_dnn_ros.settings.forms import path_problem
from multi_dnn_ros.settings.parameter_fields import shown
from multi_dnn_ros.settings.schema import DnnConfig, OutputConfig
from multi_dnn_ros.settings.section import mark

_OF_DNN = re.compile(r"^dnn\.\w+\.(output\.\w+\.)?(\w+)$")


def is_swappable(name: str) -> bool:
    """Whether the parameter of this ROS name belongs to a DNN and can change by a swap; also true for its runtime
    parameters, which need no swap.
    """
    return _OF_DNN.fullmatch(name) is not None and not _mark(name, "fixed")


def missing_file(name: str, value: Any) -> str:
    """The problem if the parameter names a file or folder that does not exist, otherwise an empty string."""
    if not isinstance(value, str) or not value:
        return ""
    if _mark(name, "folder"):
        problem = path_problem(value, "folder")
    elif ":" not in value and Path(value).suffix.lower() in (_mark(name, "file_suffixes") or ()):
        problem = path_problem(value, "file")
    else:
        return ""
    return f"parameter {name} is {shown(value)}: {problem}" if problem else ""


def _mark(name: str, key: str) -> Any:
    """See :func:`multi_dnn_ros.settings.section.mark`; name: of a parameter of a DNN, otherwise None."""
    match = _OF_DNN.fullmatch(name)
    return mark(OutputConfig if match[1] else DnnConfig, match[2], key) if match is not None else None
