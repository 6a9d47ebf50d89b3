"""What the supervisor knows: the DNNs that one engine serves, with their status; and a swap of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.serving.descriptions import DnnDescription, EngineStatus, Level
from multi_dnn_ros.serving.engine_process import Engine
from multi_dnn_ros.settings.schema import NodeConfig


@dataclass(eq=False)
class Group:
    """DNNs that one engine serves.

    own: one DNN after the second loss of the engine that it shared; until its own engine is ready, a hot standby may
    serve it with others. engine: serves the group now. spare: is prepared as a replacement or as a standby;
    spare_cause: why the latest standby was lost. failures: losses and failed preparations since the group last served
    for fault_window_s; losses: only those that a DNN of the group may have caused. disabled: why its DNN is disabled
    until an engine serves it; "": it is not. restarts, cause, lost_ns: number of replacements; of the latest loss.
    gap_ms: from the latest loss to its replacement.
    """

    device: str
    dnns: tuple[str, ...]
    own: bool = False
    engine: Engine | None = None
    spare: Engine | None = None
    spare_cause: str = ""
    failures: int = 0
    losses: int = 0
    next_attempt_ns: int = 0
    served_since_ns: int = 0
    disabled: str = ""
    restarts: int = 0
    cause: str = ""
    lost_ns: int = 0
    gap_ms: float = 0.0

    @property
    def name(self) -> str:
        """The name in the log and in diagnostics: `engine cuda:0`, or `engine cuda:0 lane` for a DNN with its own."""
        return f"engine {self.device}" + (f" {self.dnns[0]}" if self.own else "")

    @property
    def is_served(self) -> bool:
        """Whether an engine serves the group and no DNN of another group."""
        return self.engine is not None and (not self.own or self.engine.dnns == self.dnns)

    def has_standby(self, kind: str) -> bool:
        """Whether the spare can take over. kind: parameter standby."""
        return self.spare is not None and (
            self.spare.is_ready if kind == "warm" else self.spare.description is not None
        )

    def status(self, kind: str, window_ns: int, now_ns: int, *, active: bool) -> EngineStatus:
        """ERROR while no engine serves the group; WARN for fault_window_s after a loss, for a DNN with an engine of its
        own, and while the standby is missing. kind: parameter standby. active: whether frames arrive.
        """
        standby = f"{kind}, ready" if self.has_standby(kind) else f"{kind}, being prepared"
        if kind == "none" or self.own:
            standby = "none (parameter standby)" if kind == "none" else "none"
        elif self.spare is None:
            standby = "none at this moment" + (f": {self.spare_cause}" if self.spare_cause else "")
        engine, ago_ns = self.engine, now_ns - self.lost_ns
        values: dict[str, object] = {
            "DNNs": ", ".join(self.dnns),
            "pid": engine.pid if engine is not None else "none",
            "uptime (s)": f"{(now_ns - engine.started_ns) / 1e9:.1f}" if engine is not None else "0.0",
            "restarts": self.restarts,
            **(engine.memory() if engine is not None else {}),
        }
        if self.cause:
            values["last loss"] = self.cause
            values["last loss (s ago)"] = f"{ago_ns / 1e9:.1f}"
            values["gap (ms)"] = "ongoing" if engine is None else f"{self.gap_ms:.0f}"
        values["standby"] = standby
        level, text = Level.OK, "serving" if active else "ready"
        if self.disabled:
            level, text = Level.ERROR, self.disabled
        elif engine is None:
            wait_s = (self.next_attempt_ns - now_ns) / 1e9 if self.spare is None else 0.0
            step = f"next attempt in {wait_s:.0f} s" if wait_s > 0 else "preparing a process"
            level, text = Level.ERROR, f"no process serves {', '.join(self.dnns)}: {self.cause}; {step}"
        elif self.own:
            level, text = (
                Level.WARN,
                f"{'has' if self.is_served else 'will have'} a process of its own after two losses",
            )
        elif self.cause and ago_ns < window_ns:
            level, text = Level.WARN, f"lost {ago_ns / 1e9:.0f} s ago and replaced: {self.cause}"
        elif self.spare is None and self.spare_cause:
            level, text = Level.WARN, f"{text}; standby: {standby}"
        return EngineStatus(self.name, level, text, values)


@dataclass
class Swap:
    """Other settings of DNNs, for which engines are prepared while the previous ones serve (docs/isolation.md).

    When they are ready, the caller commits the swap, and they take over between two frames. Any thread may use it.

    configs: by device, the new settings. notify: called in any thread when the state may have changed; must neither
    block nor use the swap. engines: those being prepared, by group. failure: why the swap has failed or was cancelled;
    "": it was not. progress: the latest step of the preparation.
    """

    configs: Mapping[str, NodeConfig]
    notify: Callable[[], None]
    _commit: Callable[[Swap], bool]  # of the supervisor
    _cancel: Callable[[Swap, str], None]
    engines: dict[Group, Engine] = field(default_factory=dict)
    failure: str = ""
    progress: str = ""
    committed: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether it was neither committed nor cancelled, and has not failed."""
        return not self.committed and not self.failure

    @property
    def is_prepared(self) -> bool:
        """Whether it can be committed."""
        return self.is_under_way and all(engine.description is not None for engine in self.engines.values())

    def descriptions(self) -> dict[str, DnnDescription]:
        """The DNNs with the new settings, once prepared."""
        found = [engine.description for engine in self.engines.values()]
        return {name: dnn for it in found if it is not None for name, dnn in it.dnns.items()}

    def commit(self) -> bool:
        """Let the new settings take over between two frames. False: they are not, or no longer, prepared."""
        return self._commit(self)

    def cancel(self, cause: str) -> None:
        """End the preparation; no effect after the commit."""
        self._cancel(self, cause)
