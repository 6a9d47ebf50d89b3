"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
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
    file is removed. A pipe or device is not replaced: the content of the file is written into it at the end.
    """
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            content = Path(folder, f"content{path.suffix}")
            yield content
            with content.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        return
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


def is_stream(path: Path) -> bool:
    """Whether `path` is an existing pipe, device or open file, such as /dev/null, /dev/stdout or /dev/fd/3."""
    if not path.exists() or path.is_dir():
        return False
    if not path.is_file():
        return True
    # Also an open file may be a regular one, which is written into, and whose name in /dev is a link that stays.
    folders = [path.parent, *([Path(os.readlink(path)).parent] if path.is_symlink() else [])]
    return any(folder.resolve().is_relative_to("/proc") for folder in folders)


def temporary_path(path: Path) -> Path:
    """A path in the folder of `path`, with the same suffix, that no other writer uses.

    It contains random digits because processes of two containers that share the folder can have the same process id.
    """
    return path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")


class AtomicWriter(ABC):
    """A file that is written in steps and gets its name at the end.

    As a context manager it closes the file at the end of the block, or discards it if the block raises.
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
