"""A model swap: the settings of DNNs change while they are served (docs/isolation.md).

Engines with the new settings are prepared while the previous ones serve. When they are ready, the caller commits the
swap, and they take over between two frames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from multi_dnn_ros.serving.descriptions import DnnDescription, Progress
from multi_dnn_ros.serving.groups import Group
from multi_dnn_ros.serving.supervised_engine import Phase, SupervisedEngine
from multi_dnn_ros.settings.schema import NodeConfig


class SwapPhase(Enum):
    """State of a swap that was neither committed nor cancelled."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    FAILED = "failed"


@dataclass(frozen=True)
class SwapState:
    """failure: why the swap has failed. progress: of the preparation; None: unknown. dnns: once prepared, the
    descriptions of the DNNs with the new settings.
    """

    phase: SwapPhase
    failure: str = ""
    progress: Progress | None = None
    dnns: Mapping[str, DnnDescription] = field(default_factory=dict)


class Swap:
    """:meth:`state`, :meth:`commit` and :meth:`cancel` may be called in any thread; the supervisor calls the others.

    lock: of the supervisor, whose methods kill and adopt are. configs: by device, the new settings. notify: called in
    any thread when the state may have changed; must neither block nor use the swap. engines: each group, its DNNs when
    the swap began, and the engine prepared for it. gaps_ms: after the commit, by DNN: time between its last result
    with the previous settings and the first one with the new ones.
    """

    def __init__(
        self,
        lock: threading.RLock,
        kill: Callable[[SupervisedEngine, str], None],
        adopt: Callable[[Swap], None],
        configs: Mapping[str, NodeConfig],
        notify: Callable[[], None],
    ) -> None:
        self.configs = configs
        self.engines: list[tuple[Group, tuple[str, ...], SupervisedEngine]] = []
        self.gaps_ms: dict[str, float] = {}
        self.is_under_way = True
        self._lock, self._kill, self._adopt = lock, kill, adopt
        self._notify = notify
        self._notified = (False, "")
        self._failure = ""
        self._progress: Progress | None = None
        self._committed: frozenset[str] = frozenset()

    def state(self) -> SwapState:
        """The current state; meaningless after :meth:`commit` or :meth:`cancel`."""
        with self._lock:
            if self._failure:
                return SwapState(SwapPhase.FAILED, self._failure)
            if not self._is_prepared():
                return SwapState(SwapPhase.PREPARING, progress=self._progress)
            descriptions = [engine.description for _, _, engine in self.engines]
            dnns = {name: dnn for it in descriptions if it is not None for name, dnn in it.dnns.items()}
            return SwapState(SwapPhase.PREPARED, dnns=dnns)

    def commit(self) -> bool:
        """Let the new settings take over between two frames. False: they are not, or no longer, prepared."""
        with self._lock:
            if not self._is_prepared():
                return False
            self.is_under_way = False
            self._committed = frozenset(dnn for _, dnns, _ in self.engines for dnn in dnns)
            self._adopt(self)
            return True

    def cancel(self, cause: str) -> None:
        """End the preparation; no effect after the commit."""
        with self._lock:
            if not self.is_under_way:
                return
            self.is_under_way = False
            self._failure = self._failure or cause
            for _, _, engine in self.engines:
                if engine.phase is not Phase.KILLED:
                    self._kill(engine, cause)

    # -- called by the supervisor

    def fail(self, cause: str) -> None:
        """The swap cannot be completed."""
        if self.is_under_way:
            self._failure = cause
            self.cancel("the new settings cannot be used")
            self.check()

    def engine_lost(self, engine: SupervisedEngine, cause: str) -> None:
        """An engine was lost, perhaps one of this swap."""
        if any(mine is engine for _, _, mine in self.engines):
            self.fail(cause)

    def progressed(self, engine: SupervisedEngine, progress: Progress) -> None:
        """An engine has made progress in configuring."""
        if any(mine is engine for _, _, mine in self.engines):
            self._progress = progress

    def taken_over(self, dnn: str, gap_ms: float) -> None:
        """A DNN has its first result from another engine."""
        if dnn in self._committed and dnn not in self.gaps_ms:
            self.gaps_ms[dnn] = gap_ms
            self._notify()

    def check(self) -> None:
        """Notify the caller if the state has changed."""
        if (now := (self._is_prepared(), self._failure)) != self._notified:
            self._notified = now
            self._notify()

    def _is_prepared(self) -> bool:
        return self.is_under_way and all(engine.phase is Phase.CONFIGURED for _, _, engine in self.engines)
