"""Finds the devices of every DNN, in an engine process, because the node's process does not know the GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.pipeline.devices import devices_in_use, dnn_units
from multi_dnn_ros.planning.batch_units import sharing_warnings
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.host import Build, Progress
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)


def place(config: NodeConfig, build: Build, report: Callable[[Progress], None]) -> Mapping[str, tuple[str, ...]]:
    """The names of the devices of each DNN.

    Raises ConfigError with all problems of the parameters, because problems of the last device would otherwise be
    reported only when the DNNs of the other devices are ready.
    """
    report(Progress("choosing the devices", 0, len(config.dnns)))
    problems = default_build.check(config) if build is default_build.build else ()
    if problems:
        raise ConfigError("\n".join(problems))
    units = dnn_units(config)
    for warning in sharing_warnings(devices_in_use(units), cpu_count()):
        log.warning("parameters dnn.<dnn>.device: %s", warning)
    return {dnn: tuple(unit.name for unit in dnn_devices) for dnn, dnn_devices in units.items()}
