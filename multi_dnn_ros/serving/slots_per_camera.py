"""How many slots each camera needs, from the settings."""

from __future__ import annotations

from multi_dnn_ros.serving.slots import SlotLayout, slots_needed
from multi_dnn_ros.settings.schema import NodeConfig

#: Further slots for each additional device of a DNN, for results that wait for earlier ones.
_WAITING = 2


def slot_layouts(config: NodeConfig) -> dict[str, SlotLayout]:
    """The slots of each camera whose frames at least one DNN processes."""
    layouts = {}
    for camera, settings in config.cameras.items():
        dnns = {name: dnn for name, dnn in config.dnns.items() if not dnn.cameras or camera in dnn.cameras}
        if dnns:  # slots have space for every DNN's large results; it occupies no memory until there are some
            engines = sum(len(dnn.device) for dnn in dnns.values())
            count = slots_needed(engines) + _WAITING * (engines - len(dnns))
            layouts[camera] = SlotLayout(camera, count, settings.max_pixels, tuple(dnns))
    return layouts
