"""The engine processes while the node is being configured: one per device, not supervised yet."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from multi_dnn_ros.common.environment import with_memory_limit
from multi_dnn_ros.serving.concurrent_devices import DeviceProgress, call_by_device
from multi_dnn_ros.serving.configure_client import ConfigureClient
from multi_dnn_ros.serving.device_parts import Devices, divide, names_devices
from multi_dnn_ros.serving.host import Build, Cancelled, ConfigureError, EngineDescription, Progress
from multi_dnn_ros.serving.served_process import MakeProcess
from multi_dnn_ros.serving.slots import SlotPool, open_pools
from multi_dnn_ros.serving.slots_per_camera import slot_layouts
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Maximum time for a killed process to end.
_KILL_S = 0.8


class PreparedEngines:
    """Starts the first process. Raises ConfigureError if that fails.

    Different GPUs are configured at the same time (see call_by_device). If that fails on one of them, the
    waits for the others end at once; :meth:`discard` then ends their processes.

    make: starts a process. cancelled: ends every wait. pools: the slots of the cameras, which all processes map.
    """

    def __init__(self, config: NodeConfig, make: MakeProcess, cancelled: threading.Event) -> None:
        self.config = config.model_copy(deep=True)
        self.pools: Mapping[str, SlotPool] = {}
        self._make = make
        self._cancelled = cancelled
        self._failed = threading.Event()  # on one device: ends the waits for the others
        self._clients: list[ConfigureClient] = []
        try:
            self.pools = open_pools(slot_layouts(config))
            self._start("engine 1")
        except OSError as error:
            self.discard()
            raise ConfigureError(with_memory_limit(f"an engine process cannot be started: {error}")) from error

    def configure(
        self, build: Build, progress: Callable[[Progress], None]
    ) -> tuple[Devices, dict[str, tuple[NodeConfig, ConfigureClient, EngineDescription]]]:
        """Configure one process per device. Returns the devices of each DNN and, by device, its settings, process and
        description. Raises ConfigureError and Cancelled.
        """
        first = self._clients[0]
        if names_devices(self.config):
            devices = first.place(self.config, build, progress)
            parts = divide(self.config, devices)
        else:  # the name of the device is only known to the process
            device = self.config.device
            devices, parts = dict.fromkeys(self.config.dnns, (device,)), {device: self.config}
        try:
            for device in list(parts)[1:]:  # all of them now, so that they import their libraries at the same time
                self._start(f"engine {device}")
        except OSError as error:
            raise ConfigureError(f"an engine process cannot be started: {error}") from error
        multi_device = tuple(dnn for dnn, names in devices.items() if len(names) > 1)
        clients = dict(zip(parts, self._clients, strict=True))
        if len(parts) > 1:
            for device, client in clients.items():
                client.process.device = device
        steps = DeviceProgress({device: len(part.dnns) for device, part in parts.items()}, progress)

        def configure(device: str) -> EngineDescription:
            part = parts[device]
            timed = tuple(dnn for dnn in part.dnns if dnn in multi_device)
            description = clients[device].configure(part, build, partial(steps.report, device), timed)
            steps.done(device)
            if device not in ("auto", "cuda"):
                fits = description.fits.values()
                description = replace(description, device=device, fits=dict(zip([device], fits, strict=False)))
            return description

        descriptions = call_by_device(tuple(parts), configure, self._failed.set)
        if self._cancelled.is_set():
            raise Cancelled
        return devices, {device: (part, clients[device], descriptions[device]) for device, part in parts.items()}

    def discard(self) -> None:
        """End all processes and free the memory."""
        for client in self._clients:
            client.process.kill("configuring was cancelled or failed")
        end = time.monotonic() + _KILL_S  # for all together
        for client in self._clients:
            if not client.process.wait(max(0.0, end - time.monotonic())):
                log.error(
                    "engine process %d did not end after SIGKILL; its memory is not free until it ends",
                    client.process.pid,
                )
        for pool in self.pools.values():
            pool.close()

    def _is_cancelled(self) -> bool:
        return self._cancelled.is_set() or self._failed.is_set()

    def _start(self, label: str) -> ConfigureClient:
        settings = self.config
        client = ConfigureClient(
            self._make, label, tuple(settings.dnns), self.pools, self._is_cancelled, settings.heartbeat_timeout_s
        )
        self._clients.append(client)
        return client
