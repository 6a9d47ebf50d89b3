"""Cache entries that are valid for one network on one machine only.

An entry is a folder ``<kind>/<network>-<facts>`` in the user's cache folder, named by two checksums. A file in it holds
the facts that the entry depends on: its setup, such as the precision, and the machine, such as the GPU and versions of
libraries. An entry of the same network and setup from another machine, for example in a copied cache folder or from
before an update, is named in the log, and neither used nor deleted.

Several processes may use an entry at the same time, such as the engine processes of two GPUs of the same type.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.atomic_files import atomic_write, temporary_path
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.file_lock import waiting_lock
from multi_dnn_ros.common.resources import cache_folder

log = logging.getLogger(__name__)

_FORMAT = "multi_dnn_ros cache entry 1"
_FACTS = "facts.json"
#: Name of the file in an entry that holds what write() stored.
CONTENT = "content.json"
#: Hexadecimal digits of a checksum in the name of an entry.
_DIGITS = 16

Facts = Mapping[str, str]


@dataclass(frozen=True)
class Key:
    """What an entry depends on. network: its checksum. title: the network's name, for the log."""

    network: str
    setup: Facts
    machine: Facts
    title: str = "the DNN"

    @property
    def name(self) -> str:
        """Name of the entry's folder."""
        text = json.dumps([dict(self.setup), dict(self.machine)], sort_keys=True)
        return f"{self.network[:_DIGITS]}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True)
class Entry:
    """One entry. setup, machine: as in Key; empty if their file cannot be read."""

    folder: Path
    setup: Facts
    machine: Facts

    @property
    def size_bytes(self) -> int:
        """Total size of its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    def matches(self, key: Key) -> bool:
        """Whether the entry is valid for exactly this setup and machine."""
        return self.setup == dict(key.setup) and self.machine == dict(key.machine)

    def differences(self, machine: Facts) -> str:
        """The facts of `machine` that differ in this entry, as text; "" if none does."""
        return ", ".join(
            f"{name} is '{self.machine.get(name, 'unknown')}' there and '{value}' here"
            for name, value in machine.items()
            if self.machine.get(name) != value
        )


class MachineCache:
    """The entries of one kind. what: what they hold, for messages. folder: None: `kind` in the user's cache folder.

    A file that is invalid or cannot be read or written is logged and ignored.
    """

    def __init__(self, kind: str, what: str, folder: Path | None = None) -> None:
        self._kind, self._folder = kind, folder
        self._what = what
        self._logged: set[Path] = set()

    @property
    def folder(self) -> Path:
        """Folder of all entries; it need not exist."""
        return self._folder or cache_folder() / self._kind

    def entry(self, key: Key) -> Path | None:
        """The folder of an entry, created if it is missing; None if it cannot be written."""
        folder = self.folder / key.name
        self._log_unused(key)
        try:
            if folder.exists() and not _read_entry(folder).matches(key):
                log.warning("%s in %s are not used: %s does not match the folder", self._what, folder, _FACTS)
                shutil.rmtree(folder)
            if not folder.exists():
                facts = {"format": _FORMAT, "setup": dict(key.setup), "machine": dict(key.machine)}
                _create_entry(folder, facts)
        except OSError as error:
            log.warning("%s of %s are not cached: %s cannot be written: %s", self._what, key.title, folder, error)
            return None
        return folder

    def read(self, key: Key) -> Any:
        """The content that write() stored under this key; None if there is none."""
        self._log_unused(key)
        folder = self.folder / key.name
        if not folder.exists():
            return None
        if not _read_entry(folder).matches(key):
            log.warning("%s in %s are not used: %s does not match the folder", self._what, folder, _FACTS)
            return None
        try:
            return json.loads((folder / CONTENT).read_text(encoding="utf-8"))
        except FileNotFoundError:  # another process has created the entry and is about to write its content
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s in %s are not used: %s", self._what, folder, summarize_error(error))
            return None

    def write(self, key: Key, content: Any) -> None:
        """Store `content`, JSON data."""
        folder = self.entry(key)
        if folder is None:
            return
        try:
            _write_json(folder / CONTENT, content)
        except OSError as error:
            log.warning("%s of %s are not cached: %s cannot be written: %s", self._what, key.title, folder, error)

    def locked(
        self, entry: str, waiting: Callable[[str], object] = log.info
    ) -> contextlib.AbstractContextManager[None]:
        """Held while an entry is made, so that another process waits for it instead of making it, too. entry: its name.

        waiting: see waiting_lock. Without effect where files cannot be locked.
        """
        return waiting_lock(self.folder.parent / "locks" / f"{self._kind}-{entry}", waiting)

    def entries(self, network: str = "") -> Iterator[Entry]:
        """All entries, or those of one network."""
        if self.folder.is_dir():
            for folder in sorted(self.folder.glob(f"{network[:_DIGITS]}*-*")):
                if folder.is_dir() and not folder.name.startswith("."):  # one that is being created
                    yield _read_entry(folder)

    def _log_unused(self, key: Key) -> None:
        """If there is no entry for this key, log, once each, the entries for the same network and setup elsewhere."""
        if (self.folder / key.name).exists():
            return
        for entry in self.entries(key.network):
            if entry.folder.name == key.name:  # another process has just created it
                continue
            if entry.folder not in self._logged and entry.setup == dict(key.setup):
                self._logged.add(entry.folder)
                differences = entry.differences(key.machine)
                log.warning("%s of %s in %s are not used: %s", self._what, key.title, entry.folder, differences)


def _read_entry(folder: Path) -> Entry:
    try:
        content: Any = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError
        setup, machine = (
            {str(name): str(value) for name, value in content[part].items()} for part in ("setup", "machine")
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Entry(folder, {}, {})
    return Entry(folder, setup, machine)


def _create_entry(folder: Path, facts: Any) -> None:
    """Create the folder of an entry with its facts in one step: without facts, another process would remove it."""
    temporary = temporary_path(folder)
    try:
        _write_json(temporary / _FACTS, facts)
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / _FACTS).exists():  # otherwise another process was quicker
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_json(path: Path, content: Any) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
