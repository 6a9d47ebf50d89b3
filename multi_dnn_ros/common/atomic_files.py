"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


@contextlib.contextmanager
def atomic_write(path: Path, *, to_disk: bool = False) -> Iterator[Path]:
    """Gives the path to write to; after the block that file takes the place of `path`.

    A reader meets the old file or the new one, and so does whoever comes after a kill. Folders are made. to_disk: the
    content is on the disk before it counts, so that this holds for a loss of power too. When the block raises, `path`
    stays what it was, and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield beside
        if to_disk:
            with beside.open("rb") as file:
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


class AtomicWriter(ABC):
    """What is written bit by bit and gets its name at the end; a context manager: closed, or discarded by an error."""

    @abstractmethod
    def close(self) -> None:
        """Finish it and give it its name."""

    @abstractmethod
    def discard(self) -> None:
        """Close without a result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
