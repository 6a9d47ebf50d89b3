"""Decides which actions follow from an event of an engine process: restart, standby, isolation, merging, swap."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from multi_dnn_ros.serving.supervision.actions import Action, StopServing
from multi_dnn_ros.serving.supervision.merging import Merging
from multi_dnn_ros.serving.supervision.process_table import ProcessTable, join_names
from multi_dnn_ros.serving.supervision.recovery import Recovery
from multi_dnn_ros.serving.supervision.standby import Standby
from multi_dnn_ros.serving.supervision.states import (
    COMPUTING_PHASES,
    STEADY_PHASES,
    UNBOUND_PHASES,
    Group,
    Phase,
    ProcessState,
    SupervisionTimes,
)
from multi_dnn_ros.serving.supervision.swapping import Swapping


class Supervisor:
    """Not thread-safe. Every method for an event returns the actions to execute, in this order.

    After each event the supervisor compares the actual state with the desired one (:meth:`_reconcile`): each group of
    DNNs has a process, or one that is being prepared, or a time for the next attempt. The loss of a process therefore
    needs no special case, whenever it happens.

    device: its name, for messages. dnns: the DNNs of the device. standby: none, warm or hot. clock: nanoseconds,
    monotonic.
    """

    def __init__(
        self, device: str, dnns: Sequence[str], times: SupervisionTimes, standby: str, clock: Callable[[], int]
    ) -> None:
        self._table = ProcessTable(device, dnns, times, clock)
        self.standby = Standby(self._table, standby)
        self.merging = Merging(self._table, self.standby)
        self.swapping = Swapping(self._table, self.standby, self.merging)
        self._recovery = Recovery(self._table, self.standby, self.merging)

    # -- events

    def add_configured(self) -> int:
        """Add a process that was configured for all DNNs before supervision began; returns its key."""
        table = self._table
        key = table.add_process(Phase.CONFIGURED, table.dnns)
        table.groups[0].process = key
        return key

    def activate(self) -> list[Action]:
        """Frames arrive from now on."""
        table = self._table
        table.active = True
        for group in table.groups:
            if group.loss is not None and group.loss.gap_ms is None:  # nothing was missed while inactive
                group.loss = replace(group.loss, at_ns=table.clock(), last_result_ns=None)
            if group.process is not None and table.processes[group.process].phase is Phase.CONFIGURED:
                table.start_serving(group)
        return self._reconcile()

    def deactivate(self) -> list[Action]:
        """No more frames arrive; the processes finish those in progress."""
        table = self._table
        table.active = False
        table.routes.clear()
        for process in table.processes.values():
            if process.phase is Phase.SERVING:
                table.set_phase(process, Phase.STOPPING)
                table.append(StopServing(process.key))
        return self._reconcile()

    def tick(self) -> list[Action]:
        """Time has passed."""
        return self._reconcile()

    def begin_swap(self, dnns: Collection[str]) -> list[Action]:
        """The settings of these DNNs change: prepare processes for them; a swap that is under way is cancelled."""
        self.swapping.cancel("the settings have changed again")
        self.swapping.begin(dnns)
        return self._reconcile()

    def commit_swap(self) -> list[Action]:
        """The processes that the swap has prepared serve from now on."""
        self.swapping.commit()
        return self._reconcile()

    def cancel_swap(self, cause: str) -> list[Action]:
        """End the processes that the swap prepares."""
        self.swapping.cancel(cause)
        return self._reconcile()

    def ready(self, key: int) -> list[Action]:
        """The process has finished its imports."""
        process = self._table.live_process(key)
        if process is not None and process.phase is Phase.STARTING:
            self._table.set_phase(process, Phase.READY)
        return self._reconcile()

    def configured(self, key: int) -> list[Action]:
        """The process can serve."""
        process = self._table.live_process(key)
        if process is not None and process.phase is Phase.CONFIGURING:
            self._table.set_phase(process, Phase.CONFIGURED)
            if key == self.standby.key:
                self.standby.on_configured()
        return self._reconcile()

    def refused(self, key: int, text: str, *, out_of_memory: bool = False) -> list[Action]:
        """The process could not be configured. text: the reason. out_of_memory: whether memory was the reason."""
        process = self._table.live_process(key)
        if process is not None:
            self._table.kill(process, "it could not be configured")
            self._lost(process, text, (), None, Phase.CONFIGURING, refused=True, out_of_memory=out_of_memory)
        return self._reconcile()

    def first_result(self, key: int, at_ns: int) -> list[Action]:
        """The first result of the process since it began to serve."""
        table = self._table
        for group in table.groups:
            loss = group.loss
            if loss is not None and loss.gap_ms is None and any(table.routes.get(dnn) == key for dnn in group.dnns):
                group.loss = replace(loss, gap_ms=(at_ns - loss.gap_start_ns) / 1e6)
                table.log(
                    logging.WARNING,
                    f"{self.group_name(group)} serves {join_names(group.dnns)} again after {group.loss.gap_ms:.0f} ms "
                    f"(restarts: {group.restarts})",
                )
        return self._reconcile()

    def stopped(self, key: int, hanging: Sequence[str] = ()) -> list[Action]:
        """The process has finished its frames. hanging: names of threads that did not end."""
        process = self._table.live_process(key)
        if process is not None and process.phase is Phase.DRAINING:
            self._table.kill(process, "it is no longer needed")
        elif process is not None and process.phase is Phase.STOPPING:
            if hanging:
                return self.failed(key, f"threads did not end when it stopped: {', '.join(hanging)}")
            self._table.set_phase(process, Phase.CONFIGURED)
        return self._reconcile()

    def failed(
        self, key: int, cause: str, running: Iterable[str] = (), last_result_ns: int | None = None
    ) -> list[Action]:
        """The process hangs or cannot continue: kill it, and replace it without waiting for its end.

        running, last_result_ns: see :meth:`ended`.
        """
        process = self._table.live_process(key)
        if process is not None:
            phase = process.phase
            self._table.kill(process, cause)
            self._lost(process, cause, tuple(running), last_result_ns, phase)
        return self._reconcile()

    def ended(
        self, key: int, cause: str, running: Iterable[str] = (), last_result_ns: int | None = None
    ) -> list[Action]:
        """The process was reaped. running: DNNs whose jobs were running. last_result_ns: time of its last result; None:
        it had none.
        """
        process = self._table.processes.pop(key, None)
        if process is not None and process.phase is not Phase.KILLED:
            self._lost(process, cause, tuple(running), last_result_ns, process.phase)
        return self._reconcile()

    # -- queries

    @property
    def active(self) -> bool:
        """Whether frames arrive."""
        return self._table.active

    @property
    def is_steady(self) -> bool:
        """Whether each group has a process, none is disabled, and no process is about to change its phase."""
        table = self._table
        return all(process.phase in STEADY_PHASES for process in table.processes.values()) and all(
            group.process is not None and group.disabled is None for group in table.groups
        )

    @property
    def times(self) -> SupervisionTimes:
        return self._table.times

    @property
    def processes(self) -> dict[int, ProcessState]:
        """All processes that have not been reaped, by key."""
        return self._table.processes

    @property
    def groups(self) -> list[Group]:
        return self._table.groups

    @property
    def routes(self) -> dict[str, int]:
        """By DNN, the key of the process that serves it once the actions are executed."""
        return self._table.routes

    def group_name(self, group: Group) -> str:
        """See :meth:`ProcessTable.group_name`."""
        return self._table.group_name(group)

    def unserved_reason(self, dnn: str) -> tuple[bool, str]:
        """Why no process serves a DNN: whether it is disabled, and the text for its drops."""
        group = self._table.group_of(dnn)
        if group.disabled is not None:
            return True, group.disabled
        cause = f" ({group.loss.cause})" if group.loss is not None else ""
        return False, f"no engine process serves the DNN at this moment{cause}"

    # -- loss of a process

    def _lost(
        self,
        process: ProcessState,
        cause: str,
        running: tuple[str, ...],
        last_result_ns: int | None,
        phase: Phase,
        *,
        refused: bool = False,
        out_of_memory: bool = False,
    ) -> None:
        """Remove a lost process from its role. phase: the phase in which it was lost."""
        key, table = process.key, self._table
        for dnn in [dnn for dnn, route in table.routes.items() if route == key]:
            del table.routes[dnn]
        if key == self.standby.key:
            self.standby.on_lost(cause, out_of_memory=out_of_memory)
        elif key == self.merging.key:
            self.merging.on_lost(cause)
        elif key in self.swapping.keys:
            self.swapping.fail(cause if refused else f"the new engine process was lost: {cause}")
        for group in table.groups:
            if group.replacement == key:
                group.replacement = None
                self._recovery.replacement_lost(group, cause, explained=refused or phase in UNBOUND_PHASES)
                return
            if group.process == key:
                group.process = None
                computed = phase in COMPUTING_PHASES and (last_result_ns is not None or bool(running))
                self._recovery.process_lost(group, cause, running, last_result_ns, computed=computed)
                return

    # -- from the actual to the desired state

    def _reconcile(self) -> list[Action]:
        table = self._table
        for group in list(table.groups):
            self._recovery.restore(group)
        self.swapping.advance()
        if not self.swapping.is_active:
            self.merging.advance()
        self.standby.advance(blocked=self.merging.key is not None or self.swapping.is_active)
        self._end_unused()
        return table.take_actions()

    def _end_unused(self) -> None:
        """Make processes without a role finish their frames, then kill them."""
        table = self._table
        if not any(group.served_by_common for group in table.groups):
            table.groups = [group for group in table.groups if group.dnns]
        used = {self.standby.key, self.merging.key, *self.swapping.keys}
        used.update(key for group in table.groups for key in (group.process, group.replacement))
        for process in table.processes.values():
            if process.key in used or process.phase in (Phase.DRAINING, Phase.KILLED):
                continue
            if process.phase in COMPUTING_PHASES:
                if process.phase is Phase.SERVING:
                    table.append(StopServing(process.key))
                table.set_phase(process, Phase.DRAINING)
            else:
                table.kill(process, "it is no longer needed")
