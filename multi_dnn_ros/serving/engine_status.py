"""The state of the engine processes of a device, for diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.serving.host import EngineStatus, Level
from multi_dnn_ros.serving.supervision.states import Group, Phase
from multi_dnn_ros.serving.supervision.supervisor import Supervisor


@dataclass(frozen=True)
class ProcessFigures:
    """Figures of one process. pid: None: there is no process. memory: bytes, by name."""

    pid: int | None = None
    uptime_s: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)


def group_status(supervisor: Supervisor, group: Group, figures: ProcessFigures, now_ns: int) -> EngineStatus:
    """The status of a group: ERROR while no process serves it or its DNN is disabled; WARN for fault_window_s after a
    loss, while its DNN is suspected, or while the standby is missing.
    """
    level, text = _level_and_text(supervisor, group, now_ns)
    values: dict[str, object] = {
        "DNNs": ", ".join(group.dnns),
        "pid": figures.pid if figures.pid is not None else "none",
        "uptime (s)": f"{figures.uptime_s:.1f}",
        "restarts": group.restarts,
        **figures.memory,
    }
    loss = group.loss
    if loss is not None:
        values["last loss"] = loss.cause
        values["last loss (s ago)"] = f"{(now_ns - loss.at_ns) / 1e9:.1f}"
        values["gap (ms)"] = "ongoing" if loss.gap_ms is None else f"{loss.gap_ms:.0f}"
    if not group.isolated:
        values["standby"] = supervisor.standby.state_text()
        if supervisor.merging.key is not None:
            values["preparing one process for"] = ", ".join(supervisor.merging.dnns)
    return EngineStatus(supervisor.group_name(group), level, text, values)


def _level_and_text(supervisor: Supervisor, group: Group, now_ns: int) -> tuple[Level, str]:
    if group.disabled is not None:
        return Level.ERROR, group.disabled
    loss = group.loss
    if not _is_served(supervisor, group):
        since = "" if loss is None else f" for {(now_ns - loss.at_ns) / 1e9:.1f} s: {loss.cause}"
        remaining_s = (group.next_attempt_ns - now_ns) / 1e9
        waits = group.replacement is None and remaining_s > 0
        next_step = f"; next attempt in {remaining_s:.0f} s" if waits else "; preparing a process"
        return Level.ERROR, f"no process serves {', '.join(group.dnns)}{since}{next_step}"
    if group.served_by_common:
        return Level.WARN, "suspected after faults: preparing a separate process"
    if group.isolated:
        return Level.WARN, "suspected after faults: served by a separate process"
    if loss is not None:
        restored_s = loss.restored_s(now_ns)
        if restored_s is None:
            return Level.WARN, f"replaced, no result yet: {loss.cause}"
        if restored_s < supervisor.times.fault_window_s:
            return Level.WARN, f"replaced {restored_s:.0f} s ago, gap {loss.gap_ms:.0f} ms: {loss.cause}"
    if supervisor.standby.missing_reason:
        return Level.WARN, f"serving; standby: {supervisor.standby.state_text()}"
    return Level.OK, "serving" if supervisor.active else "ready"


def _is_served(supervisor: Supervisor, group: Group) -> bool:
    if supervisor.active:
        return all(dnn in supervisor.routes for dnn in group.dnns)
    process = None if group.process is None else supervisor.processes.get(group.process)
    return process is not None and process.phase in (Phase.CONFIGURED, Phase.STOPPING)
