"""All engine processes of a device, the groups of DNNs that they serve, and the operations on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from multi_dnn_ros.serving.supervision.actions import (
    Action,
    ConfigureProcess,
    EnableDnn,
    KillProcess,
    LogLine,
    StartProcess,
    StartServing,
)
from multi_dnn_ros.serving.supervision.states import Backoff, Group, Phase, ProcessState, SupervisionTimes


class ProcessTable:
    """Not thread-safe. Operations append the actions that carry them out; :meth:`take_actions` returns these actions.

    device: its name, for messages. dnns: the DNNs of the device, at first all in one group. clock: nanoseconds,
    monotonic. active: whether frames arrive. processes: by key. routes: by DNN, the key of the process that serves it
    once the actions are executed.
    """

    def __init__(self, device: str, dnns: Sequence[str], times: SupervisionTimes, clock: Callable[[], int]) -> None:
        self.device = device
        self.dnns = tuple(dnns)
        self.times = times
        self.window_ns = round(times.fault_window_s * 1e9)
        self.clock = clock
        self.active = False
        self.processes: dict[int, ProcessState] = {}
        self.routes: dict[str, int] = {}
        self.groups = [self.new_group(self.dnns)]
        self._keys = itertools.count(1)
        self._actions: list[Action] = []

    # -- actions

    def append(self, action: Action) -> None:
        self._actions.append(action)

    def log(self, level: int, text: str) -> None:
        """level: as in :mod:`logging`."""
        self._actions.append(LogLine(level, text))

    def take_actions(self) -> list[Action]:
        """The actions since the last call, in their order."""
        actions, self._actions = self._actions, []
        return actions

    # -- processes

    def add_process(self, phase: Phase, dnns: tuple[str, ...] = ()) -> int:
        """Add a process to the table; returns its key."""
        key = next(self._keys)
        self.processes[key] = ProcessState(key, phase, self.clock(), dnns)
        return key

    def start_process(self) -> int:
        key = self.add_process(Phase.STARTING)
        self.append(StartProcess(key))
        return key

    def configure(
        self, process: ProcessState, dnns: tuple[str, ...], *, in_background: bool, swap: bool = False
    ) -> None:
        """Configure the process if its imports are done; no effect in any other phase. swap: see ConfigureProcess."""
        if process.phase is Phase.READY:
            process.dnns = dnns
            self.set_phase(process, Phase.CONFIGURING)
            self.append(ConfigureProcess(process.key, dnns, in_background, swap))

    def kill(self, process: ProcessState, cause: str) -> None:
        self.set_phase(process, Phase.KILLED)
        self.append(KillProcess(process.key, cause))

    def set_phase(self, process: ProcessState, phase: Phase) -> None:
        process.enter(phase, self.clock())

    def live_process(self, key: int) -> ProcessState | None:
        """The process with this key; None if it was killed or reaped."""
        process = self.processes.get(key)
        return None if process is None or process.phase is Phase.KILLED else process

    # -- groups

    def new_group(self, dnns: tuple[str, ...]) -> Group:
        return Group(dnns, Backoff(self.times.restart_s), Backoff(self.times.retry_s))

    def group_of(self, dnn: str) -> Group:
        return next(group for group in self.groups if dnn in group.dnns)

    def common_group(self) -> Group | None:
        """The group of the DNNs that are not suspected; None if all are suspected."""
        return next((group for group in self.groups if not group.isolated), None)

    def is_serving(self, group: Group) -> bool:
        return group.process is not None and self.processes[group.process].phase is Phase.SERVING

    def assign(self, group: Group, key: int) -> None:
        """Assign a configured process to the group; it starts serving if frames arrive."""
        group.process, group.replacement = key, None
        if group.loss is not None and group.loss.gap_ms is None:
            group.restarts += 1
        if self.active:
            self.start_serving(group)

    def start_serving(self, group: Group) -> None:
        """Route the frames of the group, and of the suspected DNNs that it serves for now, to its process."""
        assert group.process is not None
        self.set_phase(self.processes[group.process], Phase.SERVING)
        self.append(StartServing(group.process))
        group.served_since_ns = self.clock()
        if group.isolated:
            group.served_by_common = False
        others = [] if group.isolated else [other for other in self.groups if other.served_by_common]
        for dnn in (*group.dnns, *(dnn for other in others for dnn in other.dnns)):
            self.routes[dnn] = group.process

    def enable(self, group: Group) -> bool:
        """The DNN of the group is no longer disabled; returns whether it was."""
        if group.disabled is None:
            return False
        group.disabled = None
        self.append(EnableDnn(group.dnns[0]))
        return True

    def group_name(self, group: Group) -> str:
        """The name in the log and in diagnostics: `engine cuda:0`, or `engine cuda:0 lane` for an isolated DNN."""
        return f"engine {self.device}" + (f" {group.dnns[0]}" if group.isolated else "")


def join_names(dnns: Iterable[str]) -> str:
    return ", ".join(dnns)
