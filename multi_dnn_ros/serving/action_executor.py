"""Executes the supervisor's actions on the engine processes and the accounts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.hand_over import HandOver
from multi_dnn_ros.serving.host import Build
from multi_dnn_ros.serving.outcomes import Outcomes
from multi_dnn_ros.serving.runtime_parameters import runtime_parameters
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import SlotPool
from multi_dnn_ros.serving.supervision.actions import (
    Action,
    ConfigureProcess,
    DisableDnn,
    EnableDnn,
    KillProcess,
    LogLine,
    StartProcess,
    StartServing,
    StopServing,
    TakeOver,
)
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessTemplate:
    """What every engine process of the device is started and configured with.

    label: first part of its name. device: see ServedProcess.
    """

    config: NodeConfig
    build: Build
    pools: Mapping[str, SlotPool]
    make: MakeProcess
    label: str = "engine"
    device: str = ""


class ActionExecutor:
    """Not thread-safe.

    processes: by key; shared with the caller, which removes processes that have ended. on_message: receives the
    messages of processes that are started here, in their reader threads. on_start_failed: called with key and cause if
    a process could not be started.

    accounts: None until frames are served for the first time. stop_timeout_s: sent with StopServing.
    runtime: by DNN, the current runtime parameters, sent when a process begins to serve.
    swap_config: the settings of the swap in preparation; None: there is none. on_gap: called once for each DNN that is
    taken over, with its name and the ms between the last result of the previous process and the first result of the
    next one.
    """

    def __init__(
        self,
        template: ProcessTemplate,
        processes: dict[int, ServedProcess],
        on_message: Callable[[ServedProcess, Any], None],
        on_start_failed: Callable[[int, str], None],
    ) -> None:
        self.accounts: Outcomes | None = None
        self.stop_timeout_s = template.config.stop_timeout_s
        self.runtime = {name: runtime_parameters(template.config, name) for name in template.config.dnns}
        self.swap_config: NodeConfig | None = None
        self.on_gap: Callable[[str, float], None] = _ignore_gap
        self._template = template
        self._previous: dict[int, ServedProcess] = {}  # by key of the process that takes over
        self._processes = processes
        self._on_message = on_message
        self._on_start_failed = on_start_failed

    @property
    def config(self) -> NodeConfig:
        """The settings that processes are configured with, except for a swap."""
        return self._template.config

    def adopt(self, config: NodeConfig) -> None:
        """Use these settings for all processes that are configured from now on."""
        self._template = replace(self._template, config=config)

    def execute(self, action: Action, routes: Mapping[str, int]) -> None:
        """Execute one action. routes: by DNN, the key of its process."""
        accounts = self.accounts
        if isinstance(action, StartProcess):
            self._start_process(action.key)
        elif isinstance(action, LogLine):
            log.log(action.level, "%s", action.text)
        elif isinstance(action, DisableDnn):
            if accounts is not None:
                accounts.failure(Failure(action.dnn, action.message, 1, True))
        elif isinstance(action, EnableDnn):
            if accounts is not None:
                accounts.enabled(action.dnn)
        elif action.key in self._processes:  # otherwise it could not be started, and the event for that is queued
            process = self._processes[action.key]
            if isinstance(action, ConfigureProcess):
                template = self._template
                config = self.swap_config if action.swap and self.swap_config is not None else template.config
                process.send(
                    wire.Configure(config, action.dnns, template.build, action.in_background, measure_capacity=False)
                )
            elif isinstance(action, TakeOver):
                self._previous[action.key] = self._processes[action.previous]
            elif isinstance(action, StartServing):
                assert accounts is not None
                for dnn, key in routes.items():
                    if key == action.key:  # also a DNN that its previous process had disabled
                        accounts.enabled(dnn)
                previous = self._previous.pop(action.key, None)
                outcomes = accounts if previous is None else HandOver(accounts, previous, self.on_gap)
                process.start_serving(outcomes, {dnn: dict(values) for dnn, values in self.runtime.items()})
            elif isinstance(action, StopServing):
                process.stop_serving(self.stop_timeout_s)
            elif isinstance(action, KillProcess):
                process.kill(action.cause)

    def _start_process(self, key: int) -> None:
        template = self._template
        try:
            process = ServedProcess(
                template.make, f"{template.label} {key}", tuple(template.config.dnns), template.pools, self._on_message
            )
            process.device = template.device
            self._processes[key] = process
        except Exception as error:  # OSError; RuntimeError: no thread can be started
            self._on_start_failed(key, f"it could not be started: {error}")


def _ignore_gap(dnn: str, gap_ms: float) -> None:
    pass
