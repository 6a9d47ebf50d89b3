"""The engine processes of a soak, as the node's diagnostics report them."""

from __future__ import annotations

from multi_dnn_ros.benchmark.rig import Rig


class EngineLog:
    """Counts engine processes and their restarts while :meth:`observe` is called."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._pids: set[int] = set()
        self._restarts: dict[str, int] = {}  # by status
        self._oldest_s = 0.0

    def serving(self) -> list[int]:
        """Process IDs in the latest diagnostics, sorted."""
        named = [self._rig.value(name, "pid") or "none" for name in self._names()]
        return sorted(int(pid) for pid in named if pid != "none")

    def observe(self) -> None:
        """Read the diagnostics. To be called more often than they are published."""
        self._pids.update(self.serving())
        for name in self._names():
            # The maximum, because a group of DNNs that is divided and merged again begins with 0.
            restarts = int(self._rig.value(name, "restarts") or 0)
            self._restarts[name] = max(self._restarts.get(name, 0), restarts)
            self._oldest_s = max(self._oldest_s, float(self._rig.value(name, "uptime (s)") or 0.0))

    @property
    def restarts(self) -> int:
        """Engine processes that were replaced after they were lost."""
        return sum(self._restarts.values())

    def figures(self) -> dict[str, float]:
        """processes: number of processes that served. oldest_s: greatest age of a process."""
        return {"processes": len(self._pids), "restarts": self.restarts, "oldest_s": self._oldest_s}

    def _names(self) -> list[str]:
        return [name for name in self._rig.statuses if name.startswith("engine ")]
