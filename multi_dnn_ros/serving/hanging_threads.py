"""Threads that did not end in time."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Stopped(Protocol):
    """Something that was stopped, some of whose threads may not have ended in time."""

    def running_threads(self) -> list[str]: ...


StoppedType = TypeVar("StoppedType", bound=Stopped)


def hanging_threads(stopped: list[StoppedType]) -> list[str]:
    """Names of the threads that still run. Entries without such a thread are removed.

    Another thread may append to the list meanwhile, so entries are removed one by one and the list is never replaced.
    """
    for each in tuple(stopped):
        if not each.running_threads():
            stopped.remove(each)
    return [name for each in tuple(stopped) for name in each.running_threads()]
