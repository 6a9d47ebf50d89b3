"""`placement: auto`: chooses one device for each DNN from measured costs, and logs the table."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from multi_dnn_ros.planning.placement import DnnLoad, PlacementError, choose_placement, placement_table
from multi_dnn_ros.serving.device_parts import Devices
from multi_dnn_ros.serving.host import ConfigureError, DeviceCosts
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Rate of a camera without the parameter rate_hz.
ASSUMED_HZ = 30.0


def choose_devices(config: NodeConfig, measured: Mapping[str, DeviceCosts]) -> Devices:
    """Return the device of each DNN. measured: by device, the costs of the DNNs that may run there.

    Raises ConfigureError if no placement is possible.
    """
    loads = [_load(config, dnn, measured) for dnn in config.dnns]
    memory = {device: costs.memory_bytes for device, costs in measured.items()}
    try:
        placement = choose_placement(loads, memory)
    except PlacementError as error:
        raise ConfigureError(f"parameter placement is 'auto': {error}") from None
    log.info("placement (parameter placement is auto):\n%s", placement_table(loads, memory, placement))
    return {dnn: (device,) for dnn, device in placement.devices.items()}


def _load(config: NodeConfig, dnn: str, measured: Mapping[str, DeviceCosts]) -> DnnLoad:
    settings = config.dnns[dnn]
    cameras = dict.fromkeys(settings.cameras or config.cameras)
    return DnnLoad(
        dnn,
        sum(settings.limited_hz(config.cameras[camera].rate_hz or ASSUMED_HZ) for camera in cameras),
        {device: costs.costs[dnn] for device, costs in measured.items() if dnn in costs.costs},
        settings.deadline_ms or None,
        {device: costs.impossible[dnn] for device, costs in measured.items() if dnn in costs.impossible},
    )
