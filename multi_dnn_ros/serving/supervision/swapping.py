"""Replaces the process of a group of DNNs by one with other settings, while the previous one serves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from multi_dnn_ros.serving.supervision.actions import TakeOver
from multi_dnn_ros.serving.supervision.merging import Merging
from multi_dnn_ros.serving.supervision.process_table import ProcessTable, join_names
from multi_dnn_ros.serving.supervision.standby import Standby
from multi_dnn_ros.serving.supervision.states import UNBOUND_PHASES, Group, Phase


@dataclass(frozen=True)
class _Preparation:
    """What a process is prepared for. dnns: the DNNs of the group when the swap began."""

    group: Group
    dnns: tuple[str, ...]


class Swapping:
    """At most one swap at a time. It ends with :meth:`commit`, with :meth:`cancel`, or with a `failure`.

    A group has at most two engines in memory: a hot standby, which has the previous settings, is ended first. A standby
    that is not bound to DNNs yet is used. No other standby is prepared, and no groups are merged, until the swap has
    ended.

    failure: why the latest swap has failed; empty: it has not.
    """

    def __init__(self, table: ProcessTable, standby: Standby, merging: Merging) -> None:
        self._table = table
        self._standby = standby
        self._merging = merging
        self._prepared: dict[int, _Preparation] = {}  # by key of the process
        self._changed: frozenset[str] = frozenset()  # DNNs whose settings change
        self._previous: frozenset[int] = frozenset()  # processes that were serving at the latest commit
        self.failure = ""

    @property
    def keys(self) -> frozenset[int]:
        """The processes that are being prepared, or wait for the commit."""
        return frozenset(self._prepared)

    @property
    def is_active(self) -> bool:
        """Whether a swap is under way."""
        return bool(self._prepared)

    @property
    def is_prepared(self) -> bool:
        """Whether :meth:`commit` is possible now.

        It is not possible before the processes that the previous swap replaced have ended, because the results of at
        most one process can wait for those of another one (:class:`TakeOver`).
        """
        processes = self._table.processes
        return (
            self.is_active
            and self._previous.isdisjoint(processes)
            and all(processes[key].phase is Phase.CONFIGURED for key in self._prepared)
        )

    def begin(self, dnns: Collection[str]) -> None:
        """Prepare a process for each group with one of these DNNs, whose settings change."""
        assert not self.is_active
        table = self._table
        self.failure = ""
        self._changed = frozenset(dnns)
        self._merging.cancel("the settings of its DNNs change")
        for group in table.groups:
            if not set(group.dnns).isdisjoint(dnns):
                self._prepared[self._choose_process()] = _Preparation(group, group.dnns)

    def advance(self) -> None:
        """Continue the preparation, one step per call."""
        table = self._table
        for key, preparation in self._prepared.items():
            group, dnns = preparation.group, preparation.dnns
            if self._needed(group) != set(dnns):
                self.fail(f"after a fault, {join_names(dnns)} are being divided among processes; try again later")
                return
            serving = table.is_serving(group)
            table.configure(table.processes[key], dnns, in_background=serving, swap=True)

    def commit(self) -> None:
        """The prepared processes serve from now on; the previous ones finish their frames and end."""
        table = self._table
        prepared, self._prepared = self._prepared, {}
        previous = []
        for key, preparation in prepared.items():
            group = preparation.group
            if table.is_serving(group):
                assert group.process is not None
                table.append(TakeOver(key, group.process))
                previous.append(group.process)
            group.retry_ns = 0  # the new settings get a first attempt
            if table.enable(group):
                group.retry.reset()
            table.assign(group, key)
        self._previous = frozenset(previous)
        for key, process in table.processes.items():
            if key not in prepared:  # no other process has the new settings; an earlier hot standby may cover the DNNs
                process.dnns = tuple(dnn for dnn in process.dnns if dnn not in self._changed)

    def cancel(self, cause: str) -> None:
        """End the processes that are being prepared; the previous ones continue to serve."""
        prepared, self._prepared = self._prepared, {}
        for key in prepared:
            process = self._table.live_process(key)
            if process is not None:
                self._table.kill(process, cause)

    def fail(self, cause: str) -> None:
        """The swap cannot be completed: cancel it, with `failure` set."""
        self.cancel("the new settings cannot be used")
        self.failure = cause

    def _needed(self, group: Group) -> set[str]:
        """The DNNs that a process of the group would have to serve now; empty if the group has ended."""
        groups = self._table.groups
        if not any(group is other for other in groups):
            return set()
        others = [] if group.isolated else [other for other in groups if other.served_by_common]
        return {dnn for each in (group, *others) for dnn in each.dnns}

    def _choose_process(self) -> int:
        """Key of the standby if it is not bound to DNNs yet, otherwise of a new process; any other standby is ended."""
        standby = self._standby.process()
        if standby is not None and standby.phase in UNBOUND_PHASES:
            return self._standby.take()
        self._standby.drop("its memory is needed for new settings")
        return self._table.start_process()
