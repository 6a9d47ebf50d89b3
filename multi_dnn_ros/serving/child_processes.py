"""Reads the output of a process, and kills it with all processes that it has started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_MAX_LINE_BYTES = 10_000
_MAX_ROUNDS = 10


class LineReader:
    """Splits the bytes of a pipe into lines of text. on_line: called with each line, without its end."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def read(self, pipe: int) -> bool:
        """Read everything available from the non-blocking descriptor `pipe`; False at end of file."""
        try:
            while data := os.read(pipe, 65_536):
                *whole, self._rest = (self._rest + data).split(b"\n")
                for line in whole:
                    self._on_line(line.decode("utf-8", "replace").rstrip("\r"))
                if len(self._rest) > _MAX_LINE_BYTES:
                    self.close()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """Pass on a last line without a line end, or the beginning of a line that is too long."""
        if self._rest:
            self._on_line(self._rest.decode("utf-8", "replace"))
            self._rest = b""


def kill_group(group: int) -> None:
    """Send SIGKILL to a process group; no effect if it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def kill_session(leader: int) -> None:
    """Kill all processes of the session of `leader`, which has ended and is not reaped.

    Most are in its process group. The search for others is repeated, because a process may start another before it is
    killed.
    """
    kill_group(leader)
    for _ in range(_MAX_ROUNDS):
        others = _session(leader)
        if not others:
            return
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The running processes of a session."""
    found = []
    try:
        folders = list(Path("/proc").iterdir())
    except OSError:  # no descriptor is left; the process group is dead already
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
