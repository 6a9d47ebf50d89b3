"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
    """Whether `path` is an existing pipe or device, or an open file, such as /dev/stdout or /dev/fd/3."""
    is_open_file = path.absolute().parts[1:2] in (("dev",), ("proc",))
    return path.exists() and not path.is_dir() and (is_open_file or not path.is_file())


def temporary_path(path: Path) -> Path:
    """A path in the folder of `path`, with the same suffix, that no other writer uses, also in another container."""
    return path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")
