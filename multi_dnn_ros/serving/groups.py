"""The DNNs that one engine serves, the standby of a device, and their status in the diagnostics."""

from __future__ import annotations

from dataclasses import dataclass, field

from multi_dnn_ros.serving.descriptions import EngineStatus, Level
from multi_dnn_ros.serving.supervised_engine import Phase, SupervisedEngine


@dataclass(frozen=True)
class SupervisionTimes:
    """Times of supervision, seconds.

    fault_window_s: the parameter of that name. restart_s: pause before a group gets a new engine, by the number of
    earlier losses without fault_window_s of service in between; the last value applies to all further losses.
    retry_s: likewise, pause before a disabled DNN is tried again.
    """

    fault_window_s: float = 60.0
    restart_s: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 60.0)
    retry_s: tuple[float, ...] = (10.0, 60.0, 600.0)


@dataclass
class Loss:
    """A group lost its engine. gap_ms: time without a result; None: there is no result of another engine yet."""

    cause: str
    at_ns: int
    gap_ms: float | None = None


@dataclass
class Group:
    """DNNs that one engine serves.

    own: one DNN after the second loss of the engine that it shared. replacement: the engine that is being prepared for
    the group. losses: times of the losses within the last fault_window_s. pauses, retries: number of pauses since the
    group last served for fault_window_s. disabled: why its DNN is disabled until an engine serves it; None: it is not.
    """

    device: str
    dnns: tuple[str, ...]
    own: bool = False
    engine: SupervisedEngine | None = None
    replacement: SupervisedEngine | None = None
    next_attempt_ns: int = 0
    losses: list[int] = field(default_factory=list)
    pauses: int = 0
    retries: int = 0
    disabled: str | None = None
    served_since_ns: int | None = None
    restarts: int = 0
    loss: Loss | None = None

    @property
    def name(self) -> str:
        """The name in the log and in diagnostics: `engine cuda:0`, or `engine cuda:0 lane` for a DNN with its own."""
        return f"engine {self.device}" + (f" {self.dnns[0]}" if self.own else "")


@dataclass
class Standby:
    """The engine that is prepared to replace a lost one. reason: why there is none."""

    engine: SupervisedEngine | None = None
    next_attempt_ns: int = 0
    reason: str = ""

    def text(self, mode: str, ready: Phase) -> str:
        """Its state in words. mode: the parameter `standby`. ready: the phase in which it can take over."""
        if mode == "none":
            return "none (parameter standby)"
        if self.engine is None:
            return "none at this moment" + (f": {self.reason}" if self.reason else "")
        return f"{mode}, {'ready' if self.engine.phase is ready else 'being prepared'}"


def group_status(group: Group, standby: str, window_s: float, now_ns: int, *, active: bool) -> EngineStatus:
    """ERROR while no engine serves the group or its DNN is disabled; WARN for fault_window_s after a loss, or for a DNN
    with an engine of its own. standby: its state in words. active: whether frames arrive.
    """
    engine, loss = group.engine, group.loss
    values: dict[str, object] = {
        "DNNs": ", ".join(group.dnns),
        "pid": engine.pid if engine is not None else "none",
        "uptime (s)": f"{(now_ns - engine.started_ns) / 1e9:.1f}" if engine is not None else "0.0",
        "restarts": group.restarts,
        **(engine.memory if engine is not None else {}),
    }
    if loss is not None:
        values["last loss"] = loss.cause
        values["last loss (s ago)"] = f"{(now_ns - loss.at_ns) / 1e9:.1f}"
        values["gap (ms)"] = "ongoing" if loss.gap_ms is None else f"{loss.gap_ms:.0f}"
    values["standby"] = standby
    level, text = _level_and_text(group, window_s, now_ns, active)
    return EngineStatus(group.name, level, text, values)


def _level_and_text(group: Group, window_s: float, now_ns: int, active: bool) -> tuple[Level, str]:
    loss = group.loss
    if group.disabled is not None:
        return Level.ERROR, group.disabled
    if group.engine is None:
        cause = f": {loss.cause}" if loss is not None else ""
        wait_s = (group.next_attempt_ns - now_ns) / 1e9 if group.replacement is None else 0.0
        step = f"next attempt in {wait_s:.0f} s" if wait_s > 0 else "preparing a process"
        return Level.ERROR, f"no process serves {', '.join(group.dnns)}{cause}; {step}"
    if group.own:
        shared = group.engine.dnns != group.dnns
        return Level.WARN, f"{'will have' if shared else 'has'} a process of its own after two losses"
    if loss is not None and loss.gap_ms is None and active:
        return Level.WARN, f"replaced, no result yet: {loss.cause}"
    ago_s = (now_ns - loss.at_ns) / 1e9 if loss is not None else window_s
    if loss is not None and ago_s < window_s:
        return Level.WARN, f"lost {ago_s:.0f} s ago and replaced: {loss.cause}"
    return Level.OK, "serving" if active else "ready"
