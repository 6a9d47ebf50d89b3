"""Atomic file writes."""

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
    """Yield a temporary path to write to; on exit that file replaces `path`.

    Readers see the old or the new file, also after a kill. Parent folders are created. to_disk: fsync before the
    replacement, so that this also holds after a power loss. If the block raises, `path` is unchanged and the temporary
    file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        if to_disk:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


class AtomicWriter(ABC):
    """A file written in steps that gets its name at the end. A context manager: closes it, or discards it on an
    exception.
    """

    @abstractmethod
    def close(self) -> None:
        """Finish the file and give it its name."""

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
