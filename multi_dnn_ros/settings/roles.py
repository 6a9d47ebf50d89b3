"""Roles: labels for the purpose of a DNN. Some of them have defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RolePreset:
    """Defaults of a role.

    model: used if parameter `model` is not set. decoder: used for a model that does not define one, such as an .onnx
    file; empty: the parameter `decoder` must be set. result_kind: the kind of results that the decoder must produce.
    score_threshold: used for a model that does not define one, 0..1.
    """

    model: str
    decoder: str
    result_kind: str
    score_threshold: float = 0.4


#: All roles with defaults; any other role is only a label.
PRESETS: Mapping[str, RolePreset] = {
    "lane": RolePreset("builtin:lane", "lane", "lanes"),
    "object": RolePreset("builtin:object", "", "detections"),
    "pedestrian": RolePreset("builtin:pedestrian", "", "detections"),
}
