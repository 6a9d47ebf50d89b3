"""Which engine processes hang, by what stands on their boards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from multi_dnn_ros.serving.groups import Member, Phase


class _Board(Protocol):
    def last_beat_ns(self) -> int: ...

    def under_way(self) -> dict[str, int]: ...


#: In these nothing is loaded: whoever gives no sign of life hangs.
_JUDGED = (Phase.CONFIGURED, Phase.SERVING, Phase.STOPPING, Phase.LEAVING)
_LOADING = (Phase.STARTING, Phase.READY, Phase.CONFIGURING)
#: Who watches should look more often than this; if not, it was held up itself.
_HELD_UP_NS = 1_000_000_000


@dataclass(frozen=True)
class Verdict:
    """cause: why it hangs. under_way: the DNNs that are to blame; empty: not known."""

    cause: str
    under_way: tuple[str, ...] = ()


class Watch:
    """job_timeout_s, heartbeat_timeout_s: parameters of these names. clock: nanoseconds, monotonic.

    is_stopped: whether a process was stopped by a signal.

    Signs of life are missed only while the watch itself runs: a machine that was suspended, or a node's process that
    was stopped, condemns nobody.
    """

    def __init__(
        self,
        job_timeout_s: float,
        heartbeat_timeout_s: float,
        clock: Callable[[], int],
        is_stopped: Callable[[int], bool] = lambda pid: stopped(pid),
    ) -> None:
        self._job_timeout_s = job_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._clock = clock
        self._is_stopped = is_stopped
        self._last_ns = self._awake_since_ns = clock()
        self._stopped_since_ns: dict[int, int] = {}

    def tick(self) -> None:
        """To be called before each round, at least every 50 ms."""
        now_ns = self._clock()
        if now_ns - self._last_ns > _HELD_UP_NS:
            self._awake_since_ns = now_ns
            self._stopped_since_ns.clear()
        self._last_ns = now_ns

    def judge(self, member: Member, pid: int, board: _Board) -> Verdict | None:
        """None: there is nothing against it."""
        if member.phase in _LOADING:
            return self._judge_loading(pid)
        if member.phase not in _JUDGED:
            return None
        now_ns = self._clock()
        under_way = board.under_way()
        since_ns = max(board.last_beat_ns(), self._awake_since_ns, member.since_ns)
        silent_s = (now_ns - since_ns) / 1e9
        if silent_s > self._heartbeat_timeout_s:
            return Verdict(
                f"hung: no sign of life for {silent_s:.1f} s (parameter heartbeat_timeout_s: "
                f"{self._heartbeat_timeout_s:g})",
                tuple(under_way),
            )
        late = tuple(
            dnn
            for dnn, begun_ns in under_way.items()
            if (now_ns - max(begun_ns, self._awake_since_ns)) / 1e9 > self._job_timeout_s
        )
        if late:
            return Verdict(
                f"hung: a job of {', '.join(late)} takes longer than {self._job_timeout_s:g} s (parameter "
                "job_timeout_s)",
                late,
            )
        return None

    def _judge_loading(self, pid: int) -> Verdict | None:
        """Loading may take as long as it takes; but a stopped process does not load."""
        now_ns = self._clock()
        if not self._is_stopped(pid):
            self._stopped_since_ns.pop(pid, None)
            return None
        since_ns = self._stopped_since_ns.setdefault(pid, now_ns)
        if (now_ns - since_ns) / 1e9 <= self._heartbeat_timeout_s:
            return None
        del self._stopped_since_ns[pid]
        return Verdict(f"stopped by a signal for {self._heartbeat_timeout_s:g} s (parameter heartbeat_timeout_s)")


def stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP), not by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]
