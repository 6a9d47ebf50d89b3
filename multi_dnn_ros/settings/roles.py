"""Roles: labels for what a DNN is for. Some of them bring defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RolePreset:
    """Defaults of a role.

    model: of a DNN without one. decoder: of a model that does not know its own, such as an .onnx file; empty: it must
    be named. result_kind: what its decoder must give. score_threshold: of a model without one of its own, 0..1.
    """

    model: str
    decoder: str
    result_kind: str
    score_threshold: float = 0.4


#: Any other role is a label without defaults.
PRESETS: Mapping[str, RolePreset] = {
    "lane": RolePreset("builtin:lane", "lane", "lanes"),
    "object": RolePreset("builtin:object", "", "detections"),
    "pedestrian": RolePreset("builtin:pedestrian", "", "detections"),
}
