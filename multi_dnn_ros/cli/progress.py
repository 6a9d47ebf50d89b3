"""The progress bar of commands that measure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class UpdateBar(Protocol):
    """Updates a progress bar."""

    def __call__(self, done: int, total: int, what: str = "", /) -> None:
        """done: 0 begins again, and the time left is then estimated from there. what: replaces the description."""
        ...


@contextmanager
def progress_bar(what: str = "", unit: str = "round") -> Iterator[UpdateBar]:
    """A progress bar with the time left, on stderr if that is a terminal. Yields the function that updates it."""
    from tqdm import tqdm

    with tqdm(unit=unit, desc=what, disable=None, leave=False) as bar:

        def update(done: int, total: int, what: str = "", /) -> None:
            if not done:
                bar.reset(total)
            bar.total = total
            bar.n = done
            if what:
                bar.set_description(what, refresh=False)
            bar.refresh()

        yield update
