"""The DNNs that one engine serves, and their status in the diagnostics."""

from __future__ import annotations

from dataclasses import dataclass, field

from multi_dnn_ros.serving.descriptions import EngineStatus, Level
from multi_dnn_ros.serving.engine_process import Engine


@dataclass(frozen=True)
class Pauses:
    """Seconds before the next attempt, by the number of earlier ones without fault_window_s of service in between; the
    last value applies to all further ones. restart: of starting an engine. retry: of a disabled DNN.
    """

    restart: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 60.0)
    retry: tuple[float, ...] = (10.0, 60.0, 600.0)


@dataclass
class Group:
    """DNNs that one engine serves.

    own: one DNN after the second loss of the engine that it shared. spare: the engine that is prepared for the group,
    as a replacement or as a standby; spare_cause: why the latest standby was lost. losses: times of the losses within
    the last fault_window_s. pauses, retries: numbers of those since the group last served for fault_window_s. disabled:
    why its DNN is disabled until an engine serves it; "": it is not. cause, lost_ns: of the latest loss. gap_ms: time
    without a result after it; None: there is no result of another engine yet.
    """

    device: str
    dnns: tuple[str, ...]
    own: bool = False
    spare: Engine | None = None
    spare_cause: str = ""
    next_attempt_ns: int = 0
    losses: list[int] = field(default_factory=list)
    pauses: int = 0
    retries: int = 0
    disabled: str = ""
    served_since_ns: int | None = None
    restarts: int = 0
    cause: str = ""
    lost_ns: int = 0
    gap_ms: float | None = None

    @property
    def name(self) -> str:
        """The name in the log and in diagnostics: `engine cuda:0`, or `engine cuda:0 lane` for a DNN with its own."""
        return f"engine {self.device}" + (f" {self.dnns[0]}" if self.own else "")

    @property
    def is_missed(self) -> bool:
        """Whether the engine was lost, and no other has given a result yet."""
        return bool(self.cause) and self.gap_ms is None


def pause_ns(pauses_s: tuple[float, ...], earlier: int) -> int:
    """The pause before the next attempt. earlier: number of earlier ones; -1: the longest pause."""
    return round(pauses_s[min(earlier, len(pauses_s) - 1)] * 1e9)


def group_status(
    group: Group, engine: Engine | None, standby: str, window_ns: int, now_ns: int, *, active: bool
) -> EngineStatus:
    """ERROR while no engine serves the group or its DNN is disabled; WARN for fault_window_s after a loss, for a DNN
    with an engine of its own, and while the standby is missing. engine: serves the group. standby: its state in words.
    active: whether frames arrive.
    """
    values: dict[str, object] = {
        "DNNs": ", ".join(group.dnns),
        "pid": engine.pid if engine is not None else "none",
        "uptime (s)": f"{(now_ns - engine.started_ns) / 1e9:.1f}" if engine is not None else "0.0",
        "restarts": group.restarts,
        **(engine.memory() if engine is not None else {}),
    }
    ago_ns = now_ns - group.lost_ns
    if group.cause:
        values["last loss"] = group.cause
        values["last loss (s ago)"] = f"{ago_ns / 1e9:.1f}"
        values["gap (ms)"] = "ongoing" if group.gap_ms is None else f"{group.gap_ms:.0f}"
    values["standby"] = standby
    level, text = Level.OK, "serving" if active else "ready"
    if group.disabled:
        level, text = Level.ERROR, group.disabled
    elif engine is None:
        wait_s = (group.next_attempt_ns - now_ns) / 1e9 if group.spare is None else 0.0
        step = f"next attempt in {wait_s:.0f} s" if wait_s > 0 else "preparing a process"
        level, text = Level.ERROR, f"no process serves {', '.join(group.dnns)}: {group.cause}; {step}"
    elif group.own:
        has = "has" if engine.dnns == group.dnns else "will have"
        level, text = Level.WARN, f"{has} a process of its own after two losses"
    elif group.is_missed and active:
        level, text = Level.WARN, f"replaced, no result yet: {group.cause}"
    elif group.cause and ago_ns < window_ns:
        level, text = Level.WARN, f"lost {ago_ns / 1e9:.0f} s ago and replaced: {group.cause}"
    elif group.spare is None and group.spare_cause:
        level, text = Level.WARN, f"{text}; standby: {standby}"
    return EngineStatus(group.name, level, text, values)
