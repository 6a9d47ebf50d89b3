"""Moves isolated DNNs that have served without a fault back into the common process."""

from __future__ import annotations

import logging

from multi_dnn_ros.serving.supervision.process_table import ProcessTable, join_names
from multi_dnn_ros.serving.supervision.standby import Standby
from multi_dnn_ros.serving.supervision.states import UNBOUND_PHASES, Backoff, Group, Phase, SpareProcess

#: Share of fault_window_s for which a DNN that can be merged waits for others, so that all are merged together.
_WAIT_SHARE = 0.25


class Merging:
    """Merges isolated groups into one process. dnns: the DNNs that the process `key` is being prepared for."""

    def __init__(self, table: ProcessTable, standby: Standby) -> None:
        self._table = table
        self._standby = standby
        self._spare = SpareProcess(Backoff(table.times.retry_s))
        self.dnns: tuple[str, ...] = ()

    @property
    def key(self) -> int | None:
        """Key of the process that is being prepared for the merged groups; None: there is none."""
        return self._spare.key

    def cancel(self, cause: str = "another group has lost its process meanwhile") -> None:
        """Kill the process that is being prepared, if there is one."""
        if self._spare.key is not None:
            table = self._table
            table.kill(table.processes[self._spare.key], cause)
            self._spare.removed(table.clock(), table.window_ns)

    def on_lost(self, cause: str) -> None:
        """The process that was being prepared has ended, hangs or could not be configured."""
        table = self._table
        self._spare.removed(table.clock(), table.window_ns)
        table.log(logging.WARNING, f"engine {table.device}: the DNNs stay in separate processes: {cause}")

    def advance(self) -> None:
        """Begin, continue or finish merging, one step at a time."""
        table = self._table
        if self._spare.key is not None:
            process = table.processes[self._spare.key]
            table.configure(process, self.dnns, in_background=True)
            if process.phase is Phase.CONFIGURED:
                self._merge(process.key)
            return
        healthy = self._healthy_groups()
        common = table.common_group()
        if not healthy:
            return
        if common is None and len(healthy) == 1:  # its process becomes the common one
            healthy[0].isolated = False
            healthy[0].retry.reset()
            return
        names = {dnn for group in healthy for dnn in group.dnns} | set(common.dnns if common else ())
        self.dnns = tuple(dnn for dnn in table.dnns if dnn in names)
        current = None if common is None or common.process is None else table.processes[common.process]
        if current is not None and current.covers(self.dnns):  # an earlier hot standby, configured for all of them
            self._merge(current.key)
        elif table.clock() >= self._spare.next_attempt_ns:
            self._prepare_process()

    def _healthy_groups(self) -> list[Group]:
        """The isolated groups to merge now, which have served for fault_window_s. Empty: there are none, or not yet."""
        table = self._table
        now, window_ns = table.clock(), table.window_ns
        served = [
            (group, now - group.served_since_ns)
            for group in table.groups
            if group.isolated and group.served_since_ns is not None and table.is_serving(group)
        ]
        healthy = [group for group, served_ns in served if served_ns >= window_ns]
        soon = any((1 - _WAIT_SHARE) * window_ns <= served_ns < window_ns for _, served_ns in served)
        common = table.common_group()
        if soon or (common is not None and not table.is_serving(common)):
            return []
        if any(group.served_by_common for group in table.groups):
            return []
        return healthy

    def _prepare_process(self) -> None:
        table = self._table
        standby = self._standby.process()
        if standby is not None and (standby.covers(self.dnns) or standby.phase in UNBOUND_PHASES):
            self._spare.key = self._standby.take()
        else:
            self._standby.drop("its memory is needed for merging the DNNs")
            self._spare.key = table.start_process()
        table.log(logging.INFO, f"engine {table.device}: preparing one process for {join_names(self.dnns)}")

    def _merge(self, key: int) -> None:
        """From now on, one process serves all of `dnns`."""
        table = self._table
        self._spare.key = None
        self._spare.restart.reset()
        common = table.common_group()
        if common is None:
            common = table.new_group(())
            table.groups.insert(0, common)
        table.groups = [group for group in table.groups if group is common or not set(group.dnns) <= set(self.dnns)]
        common.dnns = self.dnns
        common.faults = []
        if common.process == key:
            for dnn in self.dnns:
                table.routes[dnn] = key
        else:
            common.replacement = None
            table.assign(common, key)
        table.log(logging.INFO, f"engine {table.device}: one process serves {join_names(self.dnns)} again")
