"""Recovers from the loss of a process: restores its group, or isolates or disables the suspected DNNs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from multi_dnn_ros.serving.supervision.actions import DisableDnn
from multi_dnn_ros.serving.supervision.merging import Merging
from multi_dnn_ros.serving.supervision.process_table import ProcessTable, join_names
from multi_dnn_ros.serving.supervision.standby import Standby
from multi_dnn_ros.serving.supervision.states import UNBOUND_PHASES, Group, Loss, Phase


class Recovery:
    """After the first fault of a group, its process is replaced. After a second one within fault_window_s, the DNNs
    that were computing are suspected, and each gets a separate process. An isolated DNN whose process is lost is at
    fault and is disabled.
    """

    def __init__(self, table: ProcessTable, standby: Standby, merging: Merging) -> None:
        self._table = table
        self._standby = standby
        self._merging = merging

    def process_lost(
        self, group: Group, cause: str, running: tuple[str, ...], last_result_ns: int | None, *, computed: bool
    ) -> None:
        """A group has lost its process. running: DNNs whose jobs were running.

        computed: the process had served frames, so one of its DNNs may be the cause.
        """
        table = self._table
        now = table.clock()
        self._merging.cancel()
        others = [] if group.isolated else [other for other in table.groups if other.served_by_common]
        for each in (group, *others):
            each.served_by_common = False
            loss = each.loss if each.loss is not None and each.loss.gap_ms is None else Loss(cause, now, last_result_ns)
            each.loss = replace(loss, cause=cause)
        if group.served_since_ns is not None and now - group.served_since_ns >= table.window_ns:
            group.restart.reset()
            group.retry.reset()
        group.served_since_ns = None
        computing = f" while computing {join_names(running)}" if running else ""
        table.log(logging.ERROR, f"{table.group_name(group)} was lost{computing}: {cause}")
        suspects = [dnn for dnn in group.dnns if not running or dnn in running]
        if not computed:  # no evidence against a DNN
            self._pause(group)
        elif group.isolated:
            self._disable(group, cause)
        elif not self._count_fault(group) or not suspects:
            self._pause(group)
        elif len(group.dnns) == 1 and not others:
            self._disable(group, cause)
        else:
            self._isolate(group, suspects)

    def replacement_lost(self, group: Group, cause: str, *, explained: bool) -> None:
        """The process that was being prepared for a group is lost.

        explained: the cause is known, and no DNN is at fault: the process could not be configured, or it ended before
        it was bound to DNNs.
        """
        table = self._table
        if group.loss is not None and group.loss.gap_ms is None:
            group.loss = replace(group.loss, cause=cause)
        table.log(
            logging.ERROR,
            f"{table.group_name(group)}: preparing a process for {join_names(group.dnns)} failed: {cause}",
        )
        if explained or group.served_by_common:
            table.enable(group)  # from now on its frames are dropped for the new reason
            self._pause(group)
        elif group.isolated:
            self._disable(group, cause)
        elif self._count_fault(group) and len(group.dnns) > 1:
            self._isolate(group, list(group.dnns))
        else:
            self._pause(group)

    def restore(self, group: Group) -> None:
        """Prepare a process for a group that has none, once the pause of the group is over; one step per call."""
        table = self._table
        if not group.dnns:
            return
        if group.process is None and group.replacement is None:
            standby = None if group.isolated else self._standby.configured_for(group.dnns)
            if standby is not None:  # it can serve at once: no pause
                table.assign(group, self._standby.take())
                return
            if table.clock() < group.next_attempt_ns:
                return
            group.replacement = self._choose_process(group)
        if group.replacement is not None:
            process = table.processes[group.replacement]
            table.configure(process, group.dnns, in_background=group.served_by_common)
            if process.phase is Phase.CONFIGURED and table.clock() >= group.retry_ns:
                if table.enable(group):
                    table.log(logging.INFO, f"DNN {group.dnns[0]} is retried in a separate engine process")
                table.assign(group, process.key)

    def _choose_process(self, group: Group) -> int:
        """Key of the standby, in any phase, if it can be used for the group; otherwise of a new process."""
        standby = self._standby.process()
        usable = standby is not None and (
            standby.phase in UNBOUND_PHASES or (standby.covers(group.dnns) and not group.isolated)
        )
        if usable and not group.retry.failures:  # the standby is not used up for a DNN that is retried
            return self._standby.take()
        return self._table.start_process()

    def _count_fault(self, group: Group) -> bool:
        """Count a fault; returns whether another one preceded it within the window."""
        now = self._table.clock()
        group.faults = [at for at in group.faults if now - at < self._table.window_ns] + [now]
        return len(group.faults) > 1

    def _pause(self, group: Group) -> None:
        group.next_attempt_ns = self._table.clock() + group.restart.failed()

    def _disable(self, group: Group, cause: str) -> None:
        """Disable the only DNN of a group, which is at fault. Its next process is prepared before the pause ends."""
        self._table.enable(group)  # replaces the previous reason
        pause_ns = group.retry.failed()
        ahead_ns = round(self._table.times.prepare_ahead_s * 1e9)
        group.isolated = True
        group.retry_ns = self._table.clock() + pause_ns
        group.next_attempt_ns = group.retry_ns - min(pause_ns, ahead_ns)
        group.disabled = f"disabled because its engine process was lost: {cause}; next retry in {pause_ns / 1e9:g} s"
        self._table.append(DisableDnn(group.dnns[0], group.disabled))

    def _isolate(self, group: Group, suspects: Sequence[str]) -> None:
        """Give each suspected DNN a process of its own. Until these are ready, a hot standby serves all DNNs."""
        table = self._table
        now = table.clock()
        standby = self._standby.configured_for(group.dnns)
        group.dnns = tuple(dnn for dnn in group.dnns if dnn not in suspects)
        group.next_attempt_ns = now
        for dnn in suspects:
            single = table.new_group((dnn,))
            single.isolated, single.served_by_common, single.next_attempt_ns = True, standby is not None, now
            single.loss = group.loss
            table.groups.append(single)
        table.log(
            logging.WARNING,
            f"engine {table.device}: {join_names(suspects)} suspected after {len(group.faults)} faults within "
            f"{table.times.fault_window_s:g} s (parameter fault_window_s): each gets a separate engine process",
        )
        if standby is not None:
            table.assign(group, self._standby.take())
