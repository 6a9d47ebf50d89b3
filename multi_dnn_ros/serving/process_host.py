"""The engines in separate, supervised processes, one per device: the Host for `isolation: process`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from multi_dnn_ros.common.time_units import ms_to_ns
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.action_executor import ProcessTemplate
from multi_dnn_ros.serving.concurrent_devices import call_concurrently
from multi_dnn_ros.serving.device_outcomes import DeviceOutcomes, MultiDeviceDnns
from multi_dnn_ros.serving.device_parts import combine
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.frame_dispatcher import FrameDispatcher
from multi_dnn_ros.serving.host import Buffer, Build, Changes, ConfigureError, EngineDescription, EngineStatus, Progress
from multi_dnn_ros.serving.model_swap import ModelSwap
from multi_dnn_ros.serving.prepared_engines import PreparedEngines
from multi_dnn_ros.serving.result_order import ResultOrder
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import Slot, SlotPool
from multi_dnn_ros.serving.supervised_processes import SupervisedProcesses
from multi_dnn_ros.serving.supervision.states import SupervisionTimes
from multi_dnn_ros.settings.schema import NodeConfig

#: Maximum time for close().
_CLOSE_S = 2.0


@dataclass(frozen=True)
class _MultiDevice:
    """DNNs with several devices. devices: their names, by DNN. service_ms: (DNN, device) -> time of a frame.
    reorder_ns: the parameter reorder_ms.
    """

    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    service_ms: Mapping[tuple[str, str], float] = field(default_factory=dict)
    reorder_ns: int = 0


@dataclass(frozen=True)
class _Serving:
    """Valid from one start to the next. outcomes: by device. multi_device: None if no DNN has several devices."""

    accounts: Accounts
    outcomes: Mapping[str, DeviceOutcomes]
    multi_device: MultiDeviceDnns | None


class ProcessHost:
    """A :class:`multi_dnn_ros.serving.host.Host`. build: makes the pipeline in the engine processes.

    restart_s, retry_s: see :class:`multi_dnn_ros.serving.supervision.states.SupervisionTimes`. make: starts a process;
    None: starts an :class:`multi_dnn_ros.serving.engine_process.EngineProcess`.
    """

    def __init__(
        self,
        build: Build = default_build.build,
        *,
        restart_s: tuple[float, ...] = SupervisionTimes.restart_s,
        retry_s: tuple[float, ...] = SupervisionTimes.retry_s,
        make: MakeProcess | None = None,
    ) -> None:
        self._build = build
        self._restart_s, self._retry_s = restart_s, retry_s
        self._make = make or partial(EngineProcess, modules=default_build.modules_of(build))
        self._cancelled = threading.Event()
        self._preparing = threading.Lock()  # held by configure
        self._pools: Mapping[str, SlotPool] = {}
        self._engines: Mapping[str, SupervisedProcesses] = {}  # by device, once configured
        self._multi_device = _MultiDevice()
        self._serving: _Serving | None = None

    # -- before serving

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> EngineDescription:
        with self._preparing:
            if self._engines:
                raise RuntimeError("the engine is already configured; call close() before configure()")
            self._cancelled.clear()
            prepared = PreparedEngines(config, self._make, self._cancelled)
            engines: dict[str, SupervisedProcesses] = {}
            try:
                devices, found = prepared.configure(self._build, progress)
                times = SupervisionTimes(config.fault_window_s, self._restart_s, self._retry_s)
                for device, (part, client, description) in found.items():
                    label, name = ("engine", "") if len(found) == 1 else (f"engine {device}", device)
                    template = ProcessTemplate(
                        part.model_copy(deep=True), self._build, prepared.pools, self._make, label, name
                    )
                    engines[device] = SupervisedProcesses(template, description, times, client.process)
            except BaseException:
                for started in engines.values():
                    started.close(_CLOSE_S)
                prepared.discard()
                raise
            for device, (_, client, _) in found.items():
                client.hand_over(engines[device].on_message)
            descriptions = {device: description for device, (_, _, description) in found.items()}
            self._multi_device = _MultiDevice(
                {dnn: names for dnn, names in devices.items() if len(names) > 1},
                {(dnn, device): ms for device, each in descriptions.items() for dnn, ms in each.service_ms.items()},
                ms_to_ns(config.reorder_ms),
            )
            self._pools, self._engines = prepared.pools, engines
            return combine(config, descriptions)

    def cancel(self) -> None:
        self._cancelled.set()

    # -- serving

    def start(self, accounts: Accounts) -> None:
        if not self._engines:
            raise RuntimeError("the engine is not configured")
        self._close_order()
        known, multi_device = self._multi_device, None
        if known.devices:
            multi_device = MultiDeviceDnns(
                known.devices,
                FrameDispatcher(known.devices, known.service_ms, known.reorder_ns),
                ResultOrder(accounts, known.reorder_ns),
            )
            accounts.set_devices({dnn: len(devices) for dnn, devices in known.devices.items()})
        outcomes = {device: DeviceOutcomes(device, accounts, multi_device) for device in self._engines}
        self._serving = _Serving(accounts, outcomes, multi_device)
        for device, engines in self._engines.items():
            engines.start(outcomes[device])

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        pool = self._pools.get(camera)
        return None if pool is None else pool.take(timeout_s)

    def offer(self, number: int, frame: Frame, buffer: Buffer, dnns: Collection[str]) -> None:
        assert isinstance(buffer, Slot)
        serving, camera = self._serving, frame.camera
        if not self._engines or serving is None:
            raise RuntimeError("a frame was offered before the engine was started")
        # One message to each process, with all DNNs that it computes for this frame.
        offers: dict[int, tuple[str, ServedProcess, list[str]]] = {}
        candidates: dict[str, dict[str, ServedProcess]] = {}  # by DNN with several devices
        lost: dict[str, tuple[DropReason, str]] = {}
        for device, engines in self._engines.items():
            routes = engines.routes(camera)
            for process, served in routes.served:
                for dnn in served:
                    if dnn not in dnns:
                        continue
                    if serving.multi_device is None or dnn not in serving.multi_device.devices:
                        offers.setdefault(id(process), (device, process, []))[2].append(dnn)
                    elif not process.has_ended:
                        candidates.setdefault(dnn, {})[device] = process
            for dnn, reason, message in routes.lost:
                if dnn in dnns:
                    lost.setdefault(dnn, (reason, message))
        if serving.multi_device is not None:
            for dnn, processes in candidates.items():
                lost.pop(dnn, None)
                device = serving.multi_device.dispatcher.choose(dnn, camera, number, tuple(processes))
                serving.multi_device.order.expect(number, dnn, camera)
                process = processes[device]
                offers.setdefault(id(process), (device, process, []))[2].append(dnn)
            missing = [
                dnn for dnn in serving.multi_device.devices if dnn in dnns and dnn not in candidates and dnn not in lost
            ]
            lost |= dict.fromkeys(missing, (DropReason.ENGINE_LOST, "the engine processes have just ended"))
        for device, process, recipients in offers.values():
            if not process.offer(number, frame, buffer, tuple(recipients)):
                for dnn, (reason, message) in self._offer_again(device, number, frame, buffer, recipients).items():
                    serving.outcomes[device].drop(number, dnn, reason, message)
        for dnn, (reason, message) in lost.items():
            serving.accounts.drop(number, dnn, reason, message)

    def _offer_again(
        self, device: str, number: int, frame: Frame, buffer: Slot, dnns: Sequence[str]
    ) -> dict[str, tuple[DropReason, str]]:
        """Offer a frame that a process has not accepted to the process that has taken over from it meanwhile.

        Returns why it is dropped, for each DNN that no process serves.
        """
        unserved = dict.fromkeys(dnns, (DropReason.ENGINE_LOST, "the engine process has just ended"))
        engines = self._engines.get(device)
        if engines is None:  # close() was called meanwhile
            return unserved
        routes = engines.routes(frame.camera)
        for process, served in routes.served:
            recipients = tuple(dnn for dnn in unserved if dnn in served)
            if recipients and process.offer(number, frame, buffer, recipients):
                unserved = {dnn: why for dnn, why in unserved.items() if dnn not in recipients}
        return unserved | {dnn: (reason, message) for dnn, reason, message in routes.lost if dnn in unserved}

    def swap(self, changes: Changes, notify: Callable[[], None]) -> ModelSwap:
        if not self._engines:
            raise ConfigureError("the engine is not configured")
        return ModelSwap(tuple(self._engines.values()), changes, notify)

    def has_engine_for(self, camera: str) -> bool:
        return any(
            not process.has_ended for engines in self._engines.values() for process, _ in engines.routes(camera).served
        )

    def decodes_jpeg(self, camera: str, dnns: Collection[str]) -> bool:
        serving = [
            process
            for engines in self._engines.values()
            for process, served in engines.routes(camera).served
            if any(dnn in dnns for dnn in served)
        ]
        return bool(serving) and all(process.decodes_jpeg for process in serving)

    def update(self, dnn: str, name: str, value: Any) -> None:
        for engines in self._engines.values():
            engines.update(dnn, name, value)

    def stop(self, timeout_s: float) -> list[str]:
        engines, serving = tuple(self._engines.values()), self._serving
        hanging = call_concurrently([partial(one.stop, timeout_s) for one in engines])
        self._close_order()
        if serving is not None and engines:
            message = "still in progress when the engine's stop timed out"
            serving.accounts.drop_unanswered(serving.accounts.cameras_by_dnn, DropReason.SHUTDOWN, message)
        return list(dict.fromkeys(name for names in hanging for name in names))

    def close(self) -> None:
        end = time.monotonic() + _CLOSE_S
        self._cancelled.set()
        with self._preparing:  # a running configure() ends within a second
            engines, self._engines = tuple(self._engines.values()), {}
            pools, self._pools = self._pools, {}
        if engines and self._serving is not None:
            accounts = self._serving.accounts
            accounts.drop_unanswered(accounts.cameras_by_dnn, DropReason.SHUTDOWN, "the engine was closed")
        call_concurrently([partial(one.close, max(0.1, end - time.monotonic())) for one in engines])
        self._close_order()
        for pool in pools.values():
            pool.close()

    def _close_order(self) -> None:
        """Pass on the results that wait for earlier ones."""
        if self._serving is not None and self._serving.multi_device is not None:
            self._serving.multi_device.order.close()

    # -- queries

    def statuses(self) -> list[EngineStatus]:
        return [status for engines in self._engines.values() for status in engines.statuses()]

    def memory(self) -> Mapping[str, int]:
        total: dict[str, int] = {}
        for engines in self._engines.values():
            for name, value in engines.memory().items():
                total[name] = total.get(name, 0) + value
        return total

    def supervision_age_s(self) -> float:
        return max((engines.supervision_age_s() for engines in self._engines.values()), default=0.0)
