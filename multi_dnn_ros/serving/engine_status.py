"""How the engine processes of a device are, for diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.serving.groups import Group, Phase
from multi_dnn_ros.serving.host import EngineStatus, Level
from multi_dnn_ros.serving.supervision import Supervisor


@dataclass(frozen=True)
class ProcessFigures:
    """pid: None: there is no process. memory: bytes, by name."""

    pid: int | None = None
    uptime_s: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)


def condition(supervisor: Supervisor, group: Group, figures: ProcessFigures, now_ns: int) -> EngineStatus:
    """Of one group: ERROR while nobody serves it, WARN for fault_window_s after a loss or while under suspicion."""
    level, text = _judge(supervisor, group, now_ns)
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
        values["gap (ms)"] = "lasts" if loss.gap_ms is None else f"{loss.gap_ms:.0f}"
    if not group.own:
        values["standby"] = supervisor.standby_state()
        if supervisor.merging.key is not None:
            values["preparing one process for"] = ", ".join(supervisor.merged)
    return EngineStatus(supervisor.name(group), level, text, values)


def _judge(supervisor: Supervisor, group: Group, now_ns: int) -> tuple[Level, str]:
    if group.disabled is not None:
        return Level.ERROR, group.disabled
    loss = group.loss
    if not _is_served(supervisor, group):
        since = "" if loss is None else f" for {(now_ns - loss.at_ns) / 1e9:.1f} s: {loss.cause}"
        left_s = (group.next_try_ns - now_ns) / 1e9
        then = f"; next try in {left_s:.0f} s" if group.coming is None and left_s > 0 else "; preparing a process"
        return Level.ERROR, f"no process serves {', '.join(group.dnns)}{since}{then}"
    if group.sheltered:
        return Level.WARN, "under suspicion after faults: a process of its own is being prepared"
    if group.own:
        return Level.WARN, "under suspicion after faults: served by a process of its own"
    if loss is not None:
        restored_s = loss.restored_s(now_ns)
        if restored_s is None:
            return Level.WARN, f"replaced, no answer yet: {loss.cause}"
        if restored_s < supervisor.limits.fault_window_s:
            return Level.WARN, f"replaced {restored_s:.0f} s ago, gap {loss.gap_ms:.0f} ms: {loss.cause}"
    if supervisor.standby.key is None and supervisor.standby.reason:
        return Level.WARN, f"serves; standby: {supervisor.standby_state()}"
    return Level.OK, "serves" if supervisor.active else "ready"


def _is_served(supervisor: Supervisor, group: Group) -> bool:
    if supervisor.active:
        return all(dnn in supervisor.routes for dnn in group.dnns)
    process = None if group.process is None else supervisor.members.get(group.process)
    return process is not None and process.phase in (Phase.CONFIGURED, Phase.STOPPING)
