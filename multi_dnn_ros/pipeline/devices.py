"""The devices that the parameters name: which DNN runs where on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multi_dnn_ros.backends.host import CPU, as_torch
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.pipeline.choices import ConfigError, default_workers, device_name
from multi_dnn_ros.planning.batch_units import Unit, UnitError, parse_unit
from multi_dnn_ros.settings.schema import NodeConfig


def unit_of(name: str, parameter: str) -> Unit:
    """The unit with this name, or the first GPU or the CPU for `auto`. parameter: for messages.

    Raises ConfigError if the machine does not have the unit.
    """
    if name == "auto":
        name = device_name("auto")
    try:
        unit = parse_unit(name)
    except UnitError as error:
        raise ConfigError(f"parameter {parameter} is '{name}': {error}") from None
    device_name(unit.device, f"parameter {parameter} is")
    return unit


def device_of(unit: Unit) -> Any:
    """The device of a unit: PyTorch's for a GPU, backends.host.CPU for a CPU."""
    return CPU if unit.device == "cpu" else as_torch(unit.device)


def workers_and_threads(config: NodeConfig, unit: Unit) -> tuple[int, int]:
    """(workers, CPU threads of each operation) with which a device serves the DNNs of `config`."""
    device = device_of(unit)
    workers = config.workers or default_workers(device, len(config.dnns), unit.threads)
    # On a GPU little work remains for the CPU, and each DNN's thread would start its own pool of OpenMP threads for it.
    threads = config.cpu_threads or (max(1, cpu_count() // workers) if device.type == "cpu" else 1)
    if unit.threads:
        workers = min(workers, unit.threads)
        threads = min(config.cpu_threads or unit.threads, unit.threads // workers)
    return workers, threads


def dnn_units(config: NodeConfig) -> dict[str, Unit]:
    """The device of each DNN. Raises ConfigError with all problems."""
    problems: list[str] = []
    units: dict[str, Unit] = {}
    for dnn, settings in config.dnns.items():
        own = settings.device != "auto"
        try:
            units[dnn] = unit_of(settings.device if own else config.device, f"dnn.{dnn}.device" if own else "device")
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return units


def devices_in_use(units: Mapping[str, Unit]) -> tuple[Unit, ...]:
    """The devices of all DNNs, each once, in the order of the DNNs."""
    return tuple({unit.name: unit for unit in units.values()}.values())
