"""Divides the settings of the node among its devices, and combines the descriptions of their engines.

Each device has its own engine processes, which are configured with the DNNs of that device only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from multi_dnn_ros.planning.fit import Fit
from multi_dnn_ros.serving.host import EngineDescription
from multi_dnn_ros.settings.schema import NodeConfig

#: By DNN, the names of its devices.
Devices = Mapping[str, tuple[str, ...]]

_AUTO = ["auto"]


def names_devices(config: NodeConfig) -> bool:
    """Whether the DNNs may run on different devices, which an engine process has to look up (it knows the GPUs)."""
    return any(dnn.device != _AUTO for dnn in config.dnns.values())


def divide(config: NodeConfig, devices: Devices) -> dict[str, NodeConfig]:
    """The settings of the engine processes, by device. devices: at least one for every DNN."""
    used = dict.fromkeys(device for names in devices.values() for device in names)
    parts = {}
    for device in used:
        dnns = {
            name: settings.model_copy(update={"device": _AUTO})
            for name, settings in config.dnns.items()
            if device in devices[name]
        }
        parts[device] = config.model_copy(update={"device": device, "dnns": dnns})
    return parts


def combine(config: NodeConfig, parts: Mapping[str, EngineDescription]) -> EngineDescription:
    """One description of all engines. parts: by device."""
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first
    dnns = {
        name: next(part.dnns[name] for part in parts.values() if name in part.dnns)
        for name in config.dnns
        if any(name in part.dnns for part in parts.values())
    }
    return EngineDescription(
        device=", ".join(parts),
        device_name=", ".join(dict.fromkeys(part.device_name for part in parts.values())),
        workers=sum(part.workers for part in parts.values()),
        dnns=dnns,
        fits=_share_rates({device: fit for part in parts.values() for device, fit in part.fits.items()}),
        versions=first.versions,
        decodes_jpeg=all(part.decodes_jpeg for part in parts.values()),
    )


def _share_rates(fits: Mapping[str, Fit]) -> dict[str, Fit]:
    """Divide the rates of each DNN with several devices among them, in proportion to their speeds."""
    speeds: dict[str, float] = {}
    for fit in fits.values():
        for demand in fit.demands:
            speeds[demand.dnn] = speeds.get(demand.dnn, 0.0) + demand.batch / max(demand.inference_ms, 1e-6)
    shared = {}
    for device, fit in fits.items():
        demands = []
        for demand in fit.demands:
            share = demand.batch / max(demand.inference_ms, 1e-6) / speeds[demand.dnn]
            demands.append(replace(demand, cameras={camera: hz * share for camera, hz in demand.cameras.items()}))
        shared[device] = replace(fit, demands=tuple(demands))
    return shared
