"""Output and end of a process with all that it has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LONGEST_LINE = 10_000
_ROUNDS = 10


class Lines:
    """Bytes of a pipe as lines of text."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def read(self, pipe: int) -> bool:
        """All that is there now, without waiting; False when nobody can write any more."""
        try:
            while data := os.read(pipe, 65_536):
                *whole, self._rest = (self._rest + data).split(b"\n")
                for line in whole:
                    self._take(line.decode("utf-8", "replace").rstrip("\r"))
                if len(self._rest) > _LONGEST_LINE:
                    self.close()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """A last line without an end, or one that has none for too long."""
        if self._rest:
            self._take(self._rest.decode("utf-8", "replace"))
            self._rest = b""


def kill_group(group: int) -> None:
    """SIGKILL to a process group; nothing when it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def kill_session(leader: int) -> None:
    """Kill all that a process has started and that has not left its session. The leader has ended, and is not reaped.

    Most are in its group. The others are looked for again, as one may start another before it is killed.
    """
    kill_group(leader)
    for _ in range(_ROUNDS):
        others = _session(leader)
        if not others:
            return
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The processes of a session that run."""
    found = []
    try:
        folders = list(Path("/proc").iterdir())
    except OSError:  # no descriptor is left: those of the group are dead already
        return []
    for folder in folders:
        if folder.name.isdigit():
            try:
                # pid (name, with any characters) state ppid pgrp session ...
                state, _, _, session = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            except (OSError, ValueError):
                continue  # it has just ended
            if int(session) == leader and state not in "ZX":
                found.append(int(folder.name))
    return found
