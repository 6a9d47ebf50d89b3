"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import secrets
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
    temporary = temporary_path(path)
    try:
        yield temporary
        if to_disk:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """A path beside `path` with its suffix that no other writer uses: process ids of two containers, which may share a
    folder, can be equal.
    """
    return path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")


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
