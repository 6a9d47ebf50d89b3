"""The engine in separate, supervised processes: the Host for `isolation: process`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.action_executor import ProcessTemplate
from multi_dnn_ros.serving.configure_client import ConfigureClient
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.host import Buffer, Build, Cancelled, ConfigureError, Description, EngineStatus, Progress
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import Slot, SlotLayout, SlotPool, open_pools, slots_needed
from multi_dnn_ros.serving.supervised_processes import SupervisedProcesses
from multi_dnn_ros.serving.supervision.states import SupervisionTimes
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Maximum time for close().
_CLOSE_S = 2.0
#: Maximum time for a killed process to end.
_CANCEL_S = 0.8


@dataclass(frozen=True)
class _Prepared:
    """A process that is not supervised yet, and the slots that it reads."""

    config: NodeConfig
    pools: Mapping[str, SlotPool]
    client: ConfigureClient


class ProcessHost:
    """A :class:`multi_dnn_ros.serving.host.Host`. build: makes the pipeline in the engine process.

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
        self._preparing = threading.Lock()  # held by check and configure
        self._checked: _Prepared | None = None
        self._pools: Mapping[str, SlotPool] = {}
        self._engines: SupervisedProcesses | None = None  # once configured
        self._accounts: Accounts | None = None

    # -- before serving

    def check(self, config: NodeConfig) -> Sequence[str]:
        """See Host. Raises Cancelled and ConfigureError. If there are no problems, configure() reuses the process."""
        with self._preparing:
            self._cancelled.clear()
            self._discard_checked()
            prepared = self._prepare(config)
            try:
                problems = prepared.client.check(config)
            except BaseException:
                _discard(prepared)
                raise
            if problems:
                _discard(prepared)
            else:
                self._checked = prepared
            return problems

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> Description:
        with self._preparing:
            if self._engines is not None:
                raise RuntimeError("the engine is already configured; call close() before configure()")
            if self._checked is None or self._checked.config != config:
                self._cancelled.clear()  # only here: a cancel() after check() must still cancel this call
                self._discard_checked()
                self._checked = self._prepare(config)
            prepared, self._checked = self._checked, None
            try:
                description = prepared.client.configure(config, self._build, progress)
                if self._cancelled.is_set():
                    raise Cancelled
                template = ProcessTemplate(config.model_copy(deep=True), self._build, prepared.pools, self._make)
                times = SupervisionTimes(config.fault_window_s, self._restart_s, self._retry_s)
                engines = SupervisedProcesses(template, description, times, prepared.client.process)
            except BaseException:
                _discard(prepared)
                raise
            prepared.client.hand_over(engines.on_message)
            self._pools, self._engines = prepared.pools, engines
            return description

    def cancel(self) -> None:
        self._cancelled.set()

    def _prepare(self, config: NodeConfig) -> _Prepared:
        """Start a process for the DNNs and cameras of `config`. Raises ConfigureError."""
        pools: dict[str, SlotPool] = {}
        try:
            pools = open_pools(slot_layouts(config))
            client = ConfigureClient(self._make, tuple(config.dnns), pools, self._cancelled, config.heartbeat_timeout_s)
        except OSError as error:
            _close(pools)
            raise ConfigureError(f"an engine process cannot be started: {error}") from error
        return _Prepared(config.model_copy(deep=True), pools, client)

    def _discard_checked(self) -> None:
        checked, self._checked = self._checked, None
        if checked is not None:
            _discard(checked)

    # -- serving

    def start(self, accounts: Accounts) -> None:
        if self._engines is None:
            raise RuntimeError("the engine is not configured")
        self._accounts = accounts
        self._engines.start(accounts)

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        pool = self._pools.get(camera)
        return None if pool is None else pool.take(timeout_s)

    def offer(self, number: int, frame: Frame, buffer: Buffer, dnns: Collection[str]) -> None:
        assert isinstance(buffer, Slot)
        engines, accounts = self._engines, self._accounts
        if engines is None or accounts is None:
            raise RuntimeError("a frame was offered before the engine was started")
        routes = engines.routes(frame.camera)
        for process, served in routes.served:
            wanting = tuple(dnn for dnn in served if dnn in dnns)
            if wanting and not process.offer(number, frame, buffer, wanting):
                for dnn in wanting:
                    accounts.drop(number, dnn, DropReason.ENGINE_LOST, "the engine process has just ended")
        for dnn, reason, message in routes.lost:
            accounts.drop(number, dnn, reason, message)

    def serves(self, camera: str) -> bool:
        engines = self._engines
        return engines is not None and any(not process.has_ended for process, _ in engines.routes(camera).served)

    def update(self, dnn: str, name: str, value: Any) -> None:
        engines = self._engines
        if engines is not None:
            engines.update(dnn, name, value)

    def stop(self, timeout_s: float) -> list[str]:
        engines = self._engines
        return [] if engines is None else engines.stop(timeout_s)

    def close(self) -> None:
        end = time.monotonic() + _CLOSE_S
        self._cancelled.set()
        with self._preparing:  # a running configure() ends within a second
            self._discard_checked()
            engines, self._engines = self._engines, None
            pools, self._pools = self._pools, {}
        if engines is not None:
            engines.close(max(0.1, end - time.monotonic()))
        _close(pools)

    # -- queries

    def statuses(self) -> list[EngineStatus]:
        engines = self._engines
        return [] if engines is None else engines.statuses()

    def memory(self) -> Mapping[str, int]:
        engines = self._engines
        return {} if engines is None else engines.memory()


def slot_layouts(config: NodeConfig) -> dict[str, SlotLayout]:
    """The slots of each camera that at least one DNN serves."""
    layouts = {}
    for camera, settings in config.cameras.items():
        dnns = [name for name, dnn in config.dnns.items() if not dnn.cameras or camera in dnn.cameras]
        if dnns:  # slots have space for large results of every DNN; pages that are never written take no memory
            layouts[camera] = SlotLayout(camera, slots_needed(len(dnns)), settings.max_pixels, tuple(dnns))
    return layouts


def _discard(prepared: _Prepared) -> None:
    process: ServedProcess = prepared.client.process
    process.kill("configuring was cancelled or failed")
    if not process.wait(_CANCEL_S):
        log.error("engine process %d did not end after SIGKILL", process.pid)
    _close(prepared.pools)


def _close(pools: Mapping[str, SlotPool]) -> None:
    for pool in pools.values():
        pool.close()
