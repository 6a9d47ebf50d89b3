"""Score thresholds of the built-in networks, and a log line about what they were trained on."""

from __future__ import annotations

from collections.abc import Mapping

from multi_dnn_ros.settings.schema import DnnConfig

_PREFIX = "builtin:"
#: The networks, each with a file of weights in weights/, and their score thresholds, which were chosen on real roads
#: (docs/models.md; results/builtin_real_roads.json).
SCORE_THRESHOLDS = {
    "lane": 0.4,
    "lane_small": 0.4,
    "object": 0.65,
    "object_small": 0.75,
    "pedestrian": 0.75,
    "pedestrian_small": 0.75,
}
#: Threshold on generated roads, which resemble the training data.
GENERATED_ROAD_THRESHOLD = 0.4


def is_builtin(model: str) -> bool:
    """Whether parameter `dnn.<dnn>.model` names a network of the package."""
    return model.startswith(_PREFIX)


def builtin_notice(dnns: Mapping[str, DnnConfig]) -> str:
    """A log line that names the built-in networks among `dnns`; empty if there are none."""
    names = [name for name, settings in dnns.items() if is_builtin(settings.model)]
    if not names:
        return ""
    return (
        f"built-in networks ({', '.join(names)}) were trained mostly on generated roads and are meant only for trials; "
        "docs/models.md lists their scores on real roads"
    )
