"""The engine in processes of its own, which are supervised: the Host of `isolation: process`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.conversation import Conversation
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.fleet import Fleet, Orders
from multi_dnn_ros.serving.groups import Limits
from multi_dnn_ros.serving.host import Buffer, Build, Cancelled, ConfigureError, Description, EngineStatus, Progress
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import Slot, SlotLayout, SlotPool, open_pools, slots_needed
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

_CLOSE_S = 2.0
_CANCEL_S = 0.8


@dataclass(frozen=True)
class _Prepared:
    """A process that is not supervised yet. conversation: with it."""

    config: NodeConfig
    pools: Mapping[str, SlotPool]
    conversation: Conversation


class ProcessHost:
    """A :class:`multi_dnn_ros.serving.host.Host`. build: makes the pipeline in the engine process.

    restart_s, retry_s: pauses, see :class:`multi_dnn_ros.serving.groups.Limits`. make: starts a process; None: a real
    one.
    """

    def __init__(
        self,
        build: Build = default_build.build,
        *,
        restart_s: tuple[float, ...] = Limits.restart_s,
        retry_s: tuple[float, ...] = Limits.retry_s,
        make: MakeProcess | None = None,
    ) -> None:
        self._build = build
        self._restart_s, self._try_s = restart_s, retry_s
        self._make = make or partial(EngineProcess, modules=default_build.modules_of(build))
        self._cancelled = threading.Event()
        self._preparing = threading.Lock()  # held by check and configure
        self._checked: _Prepared | None = None
        self._pools: Mapping[str, SlotPool] = {}
        self._fleet: Fleet | None = None
        self._accounts: Accounts | None = None

    # -- before serving

    def check(self, config: NodeConfig) -> Sequence[str]:
        """As the interface says; Cancelled, ConfigureError. Its process is kept for configuring if all is well."""
        with self._preparing:
            self._cancelled.clear()
            self._forget_checked()
            prepared = self._prepare(config)
            try:
                problems = prepared.conversation.check(config)
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
            if self._fleet is not None:
                raise RuntimeError("the engine is configured already; close comes before the next configure")
            if self._checked is None or self._checked.config != config:
                self._cancelled.clear()  # else what was cancelled since the check stays cancelled
                self._forget_checked()
                self._checked = self._prepare(config)
            prepared, self._checked = self._checked, None
            try:
                description = prepared.conversation.configure(config, self._build, progress)
                if self._cancelled.is_set():
                    raise Cancelled
                kept = config.model_copy(deep=True)
                orders = Orders(kept, self._build, prepared.pools, self._make)
                limits = Limits(config.fault_window_s, self._restart_s, self._try_s)
                fleet = Fleet(orders, description, limits, prepared.conversation.process)
            except BaseException:
                _discard(prepared)
                raise
            prepared.conversation.hand_over(fleet.tell)
            self._pools, self._fleet = prepared.pools, fleet
            return description

    def cancel(self) -> None:
        self._cancelled.set()

    def _prepare(self, config: NodeConfig) -> _Prepared:
        """A process for these DNNs and cameras. ConfigureError."""
        pools: dict[str, SlotPool] = {}
        try:
            pools = open_pools(slot_layouts(config))
            conversation = Conversation(
                self._make, tuple(config.dnns), pools, self._cancelled, config.heartbeat_timeout_s
            )
        except OSError as error:
            _close(pools)
            raise ConfigureError(f"an engine process cannot be started: {error}") from error
        return _Prepared(config.model_copy(deep=True), pools, conversation)

    def _forget_checked(self) -> None:
        checked, self._checked = self._checked, None
        if checked is not None:
            _discard(checked)

    # -- serving

    def start(self, accounts: Accounts) -> None:
        if self._fleet is None:
            raise RuntimeError("the engine is not configured")
        self._accounts = accounts
        self._fleet.start(accounts)

    def buffer(self, camera: str, timeout_s: float) -> Buffer | None:
        pool = self._pools.get(camera)
        return None if pool is None else pool.take(timeout_s)

    def offer(self, number: int, frame: Frame, buffer: Buffer) -> None:
        assert isinstance(buffer, Slot)
        fleet, accounts = self._fleet, self._accounts
        if fleet is None or accounts is None:
            raise RuntimeError("a frame was offered to an engine that was not started")
        routes = fleet.routes(frame.camera)
        for process, dnns in routes.served:
            if not process.offer(number, frame, buffer, dnns):
                for dnn in dnns:
                    accounts.drop(number, dnn, DropReason.ENGINE_LOST, "the engine process has just ended")
        for dnn, reason, message in routes.lost:
            accounts.drop(number, dnn, reason, message)

    def serves(self, camera: str) -> bool:
        fleet = self._fleet
        return fleet is not None and any(not process.gone for process, _ in fleet.routes(camera).served)

    def update(self, dnn: str, name: str, value: Any) -> None:
        fleet = self._fleet
        if fleet is not None:
            fleet.update(dnn, name, value)

    def stop(self, timeout_s: float) -> list[str]:
        fleet = self._fleet
        return [] if fleet is None else fleet.stop(timeout_s)

    def close(self) -> None:
        end = time.monotonic() + _CLOSE_S
        self._cancelled.set()
        with self._preparing:  # configure leaves within a second
            self._forget_checked()
            fleet, self._fleet = self._fleet, None
            pools, self._pools = self._pools, {}
        if fleet is not None:
            fleet.close(max(0.1, end - time.monotonic()))
        _close(pools)

    # -- questions

    def statuses(self) -> list[EngineStatus]:
        fleet = self._fleet
        return [] if fleet is None else fleet.statuses()

    def memory(self) -> Mapping[str, int]:
        fleet = self._fleet
        return {} if fleet is None else fleet.memory()


def slot_layouts(config: NodeConfig) -> dict[str, SlotLayout]:
    """Of each camera that a DNN serves."""
    layouts = {}
    for camera, settings in config.cameras.items():
        dnns = [name for name, dnn in config.dnns.items() if not dnn.cameras or camera in dnn.cameras]
        if dnns:  # room for large results of each: what nobody writes takes no memory
            layouts[camera] = SlotLayout(camera, slots_needed(len(dnns)), settings.max_pixels, tuple(dnns))
    return layouts


def _discard(prepared: _Prepared) -> None:
    process: ServedProcess = prepared.conversation.process
    process.kill("configuring was given up")
    if not process.wait(_CANCEL_S):
        log.error("the engine process %d does not end", process.pid)
    _close(prepared.pools)


def _close(pools: Mapping[str, SlotPool]) -> None:
    for pool in pools.values():
        pool.close()
