"""A model swap: engines with other settings of DNNs are prepared while the previous ones serve (docs/isolation.md).

When they are ready, the caller commits the swap, and they take over between two frames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from multi_dnn_ros.serving.descriptions import DnnDescription
from multi_dnn_ros.serving.engine_process import Engine, Phase
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.settings.schema import NodeConfig


class Swap:
    """Its state may be read, and :meth:`commit` and :meth:`cancel` called, in any thread; the supervisor does the rest.

    configs: by device, the new settings. notify: called in any thread when the state has changed; must neither block
    nor use the swap. lock: of the supervisor, whose methods kill and adopt are.

    failure: why the swap has failed or was cancelled; "": it was not. progress: the latest step of the preparation.
    engines: those being prepared, by their DNNs. gaps_ms: after the commit, by DNN: time between its last result with
    the previous settings and the first one with the new ones.
    """

    def __init__(
        self,
        configs: Mapping[str, NodeConfig],
        notify: Callable[[], None],
        lock: threading.RLock,
        kill: Callable[[Engine, str], None],
        adopt: Callable[[Swap], None],
    ) -> None:
        self.configs = configs
        self.engines: dict[tuple[str, ...], Engine] = {}
        self.failure = ""
        self.progress = ""
        self.gaps_ms: dict[str, float] = {}
        self._committed = False
        self._notify, self._lock, self._kill, self._adopt = notify, lock, kill, adopt
        self._notified: object = None

    @property
    def is_under_way(self) -> bool:
        """Whether it was neither committed nor cancelled, and has not failed."""
        return not self._committed and not self.failure

    @property
    def is_prepared(self) -> bool:
        """Whether it can be committed."""
        return self.is_under_way and all(engine.phase is Phase.CONFIGURED for engine in self.engines.values())

    def descriptions(self) -> dict[str, DnnDescription]:
        """The DNNs with the new settings, once prepared."""
        found = [engine.description for engine in self.engines.values()]
        return {name: dnn for it in found if it is not None for name, dnn in it.dnns.items()}

    def commit(self) -> bool:
        """Let the new settings take over between two frames. False: they are not, or no longer, prepared."""
        with self._lock:
            if not self.is_prepared:
                return False
            self._committed = True
            self._adopt(self)
            return True

    def cancel(self, cause: str) -> None:
        """End the preparation; no effect after the commit."""
        with self._lock:
            if self.is_under_way:
                self.failure = cause
                for engine in self.engines.values():
                    self._kill(engine, "the new settings are not used")

    def check(self, ledger: Ledger | None) -> None:
        """Called by the supervisor after each event. ledger: while frames arrive."""
        if self._committed and ledger is not None:
            for dnn, engine in ((dnn, engine) for dnns, engine in self.engines.items() for dnn in dnns):
                server, gap_ms = ledger.server(dnn)
                if server is engine and gap_ms is not None:
                    self.gaps_ms.setdefault(dnn, gap_ms)
        if (state := (self.is_prepared, self.failure, len(self.gaps_ms))) != self._notified:
            self._notified = state
            self._notify()
