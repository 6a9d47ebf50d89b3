"""The standby: a process that is prepared to replace a lost one (parameter `standby`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from multi_dnn_ros.serving.supervision.process_table import ProcessTable
from multi_dnn_ros.serving.supervision.states import Backoff, Phase, ProcessState, SpareProcess

#: Pause before the next standby after one did not fit into memory.
_MEMORY_PAUSE_NS = 60_000_000_000


class Standby:
    """mode: none; warm: imports done; hot: also configured, for the DNNs of the common group and for suspected DNNs
    that may return to it.
    """

    def __init__(self, table: ProcessTable, mode: str) -> None:
        self._table = table
        self._mode = mode
        self._spare = SpareProcess(Backoff(table.times.restart_s))

    @property
    def key(self) -> int | None:
        """Key of the standby process; None: there is none."""
        return self._spare.key

    @property
    def missing_reason(self) -> str:
        """Why the wanted standby is missing; empty: it exists, or none was started yet."""
        return self._spare.reason if self._spare.key is None else ""

    def state_text(self) -> str:
        """The state of the standby, for diagnostics."""
        if self._mode == "none":
            return "none (parameter standby)"
        if self._spare.key is None:
            reason = f": {self._spare.reason}" if self._spare.reason else ""
            return f"none at this moment{reason}"
        phase = self._table.processes[self._spare.key].phase
        ready = Phase.CONFIGURED if self._mode == "hot" else Phase.READY
        return f"{self._mode}, {'ready' if phase is ready else 'being prepared'}"

    def process(self) -> ProcessState | None:
        """The standby process in any phase."""
        return None if self._spare.key is None else self._table.processes[self._spare.key]

    def configured_for(self, dnns: Iterable[str]) -> int | None:
        """Key of the standby if it is configured for these DNNs, so that it can serve immediately; None otherwise."""
        process = self.process()
        if process is None or process.phase is not Phase.CONFIGURED or not process.covers(dnns):
            return None
        return process.key

    def take(self) -> int:
        """The key of the standby, which from now on belongs to the caller."""
        key = self._spare.key
        assert key is not None
        self._spare.removed(self._table.clock(), self._table.window_ns)
        return key

    def drop(self, cause: str) -> None:
        """Kill the standby, if there is one. cause: for the log."""
        process = self.process()
        if process is not None:
            self._table.kill(process, cause)
            self._spare.key = None

    def on_configured(self) -> None:
        """The standby is configured."""
        self._spare.reason = ""

    def on_lost(self, cause: str, *, out_of_memory: bool) -> None:
        """The standby has ended, hangs or could not be configured."""
        now = self._table.clock()
        self._spare.removed(now, self._table.window_ns)
        self._spare.reason = cause
        if out_of_memory:
            self._spare.next_attempt_ns = now + _MEMORY_PAUSE_NS
        self._table.log(logging.WARNING, f"engine {self._table.device}: the standby was lost: {cause}")

    def advance(self, *, blocked: bool) -> None:
        """Prepare a standby, one step per call. blocked: no new one may be started now."""
        if self._mode == "none":
            return
        table = self._table
        common = table.common_group()
        process = self.process()
        if process is None:
            busy = blocked or any(group.replacement is not None for group in table.groups)
            may_start = not busy and table.clock() >= self._spare.next_attempt_ns
            if common is not None and common.process is not None and may_start:
                self._spare.key = table.start_process()
        elif self._mode == "hot":
            if common is None:  # all DNNs are suspected: there is no process that the standby could replace
                return
            table.configure(process, self._dnns(), in_background=True)
            if process.dnns and not process.covers(common.dnns):
                self.drop("it is not configured for all DNNs that it has to serve")
        elif process.phase is Phase.READY:
            self._spare.reason = ""

    def _dnns(self) -> tuple[str, ...]:
        """All DNNs except those disabled before: a suspected DNN returns to the common group if it is not at fault."""
        table = self._table
        groups = {dnn: table.group_of(dnn) for dnn in table.dnns}
        return tuple(dnn for dnn, group in groups.items() if not group.isolated or not group.retry.failures)
