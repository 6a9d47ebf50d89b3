"""The engine processes while the node is being configured: one per device, not supervised yet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from multi_dnn_ros.serving.choose_devices import choose_devices
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

    make: starts a process. cancelled: ends every wait. pools: the slots of the cameras, which all processes map.
    """

    def __init__(self, config: NodeConfig, make: MakeProcess, cancelled: threading.Event) -> None:
        self.config = config.model_copy(deep=True)
        self.pools: Mapping[str, SlotPool] = {}
        self._make = make
        self._cancelled = cancelled
        self._clients: list[ConfigureClient] = []
        try:
            self.pools = open_pools(slot_layouts(config))
            self._start("engine 1")
        except OSError as error:
            self.discard()
            raise ConfigureError(f"an engine process cannot be started: {error}") from error

    def check(self) -> Sequence[str]:
        """See Host.check."""
        return self._clients[0].check(self.config)

    def configure(
        self, build: Build, progress: Callable[[Progress], None]
    ) -> tuple[Devices, dict[str, tuple[NodeConfig, ConfigureClient, EngineDescription]]]:
        """Configure one process per device. Returns the devices of each DNN and, by device, its settings, process and
        description. Raises ConfigureError and Cancelled.
        """
        first = self._clients[0]
        if names_devices(self.config):
            devices = first.place(self.config, build, progress)
            if self.config.placement == "auto":
                devices = self._choose_devices(devices, build, progress)
            parts = divide(self.config, devices)
        else:  # the name of the device is only known to the process
            device = self.config.device
            devices, parts = dict.fromkeys(self.config.dnns, (device,)), {device: self.config}
        try:
            for device in list(parts)[1:]:  # they import their libraries while the first one is configured
                self._start(f"engine {device}")
        except OSError as error:
            raise ConfigureError(f"an engine process cannot be started: {error}") from error
        multi_device = tuple(dnn for dnn, names in devices.items() if len(names) > 1)
        total, ready = sum(len(part.dnns) for part in parts.values()), 0
        found = {}
        for number, ((device, part), client) in enumerate(zip(parts.items(), self._clients, strict=True), start=1):

            def report(step: Progress, before: int = ready, last: bool = number == len(parts)) -> None:
                progress(replace(step, ready=before + step.ready, total=total, left_s=step.left_s if last else None))

            timed = tuple(dnn for dnn in part.dnns if dnn in multi_device)
            description = client.configure(part, build, report, timed)
            if device not in ("auto", "cuda"):
                fits = description.fits.values()
                description = replace(description, device=device, fits=dict(zip([device], fits, strict=False)))
            found[device] = (part, client, description)
            ready += len(part.dnns)
        if self._cancelled.is_set():
            raise Cancelled
        return devices, found

    def discard(self) -> None:
        """End all processes and free the memory."""
        for client in self._clients:
            client.process.kill("configuring was cancelled or failed")
        for client in self._clients:
            if not client.process.wait(_KILL_S):
                log.error(
                    "engine process %d did not end after SIGKILL; its memory is not free until it ends",
                    client.process.pid,
                )
        for pool in self.pools.values():
            pool.close()

    def _choose_devices(self, possible: Devices, build: Build, progress: Callable[[Progress], None]) -> Devices:
        """One device for each DNN. possible: by DNN, the devices to choose from."""
        if all(len(devices) == 1 for devices in possible.values()):
            return possible
        measured = {}
        for device, part in divide(self.config, possible).items():
            # In a separate process, which then ends and thereby frees all memory; one after another, because they would
            # slow each other down.
            try:
                self._start(f"engine {device} measuring")
            except OSError as error:
                raise ConfigureError(f"an engine process cannot be started: {error}") from error
            client = self._clients[-1]
            measured[device] = client.measure(part, build, progress)
            client.process.kill("the DNNs are measured")
            client.process.wait(_KILL_S)
            self._clients.pop()
        return choose_devices(self.config, measured)

    def _start(self, label: str) -> None:
        settings = self.config
        self._clients.append(
            ConfigureClient(
                self._make, label, tuple(settings.dnns), self.pools, self._cancelled, settings.heartbeat_timeout_s
            )
        )
