"""Writing a rosbag2 recording that appears under its name only when it is complete."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rosbags.interfaces import Connection, Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
from rosbags.rosbag2.enums import CompressionFormat, CompressionMode

from multi_dnn_ros.bags.definitions import definition
from multi_dnn_ros.bags.storage_file import BagError
from multi_dnn_ros.common.atomic_files import AtomicWriter

Storage = Literal["mcap", "sqlite3"]
_PLUGINS = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
#: Stem of the storage file. Not the folder's name, so that equal recordings are equal in every byte and file name;
#: metadata.yaml names the file, and every rosbag2 reader follows it.
_STEM = "recording"
_WRITE_ERRORS = (OSError, sqlite3.Error, WriterError)
_NO_TIME = QosTime(0, 0)
_LATCHED = Qos(
    QosHistory.KEEP_LAST,
    1,
    QosReliability.RELIABLE,
    QosDurability.TRANSIENT_LOCAL,
    _NO_TIME,
    _NO_TIME,
    QosLiveliness.AUTOMATIC,
    _NO_TIME,
    False,
)


class BagWriter(AtomicWriter):
    """A recording open for writing; a context manager.

    It is written into a folder of its own beside `path` and renamed when it is closed; an exception inside the `with`
    block, or :meth:`discard`, leaves nothing behind. Its files depend on what is written alone: neither on `path`, nor
    on time, user or host.

    path: the folder to make. storage: `mcap` (chunks compressed with zstd) or `sqlite3`.
    Raises BagError: the path exists already, its parent cannot be written, or (while writing) the disk is full.
    """

    def __init__(self, path: str | Path, storage: Storage = "mcap") -> None:
        self.path = Path(path)
        if storage not in _PLUGINS:
            raise BagError(f"storage is {storage!r}; it must be one of {', '.join(_PLUGINS)}")
        if self.path.exists():
            raise BagError(f"{self.path} exists already; nothing is overwritten")
        self._connections: dict[str, Connection] = {}
        self._folder: Path | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{self.path.name}.tmp-", dir=self.path.parent))
            # The rosbags writer names the storage file after the folder that it makes.
            self._writer = Writer(self._folder / _STEM, version=9, storage_plugin=_PLUGINS[storage])
            if storage == "mcap":
                self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
            self._writer.open()
        except _WRITE_ERRORS as error:
            self._remove()
            raise BagError(f"cannot write {self.path}: {error}") from error

    @property
    def partial(self) -> Path:
        """The unfinished recording's folder; files put here come along when it gets its name."""
        if self._folder is None:
            raise BagError(f"{self.path} is closed")
        return self._folder / _STEM

    def add_topic(self, topic: str, msgtype: str, *, latched: bool = False) -> None:
        """Declare a topic, so that it is listed even when nothing is written on it.

        latched: offered as transient local, so that a player publishes it for late subscribers.
        Raises LookupError: the message type is not installed.
        """
        known = self._connections.get(topic)
        if known is None:
            text, type_hash = definition(msgtype)
            try:
                self._connections[topic] = self._writer.add_connection(
                    topic, msgtype, msgdef=text, rihs01=type_hash, offered_qos_profiles=[_LATCHED] if latched else []
                )
            except _WRITE_ERRORS as error:
                raise BagError(f"cannot write {self.path}: {error}") from error
        elif known.msgtype != msgtype:
            raise BagError(f"topic {topic} of {self.path} has type {known.msgtype}; {msgtype} does not fit")

    def add_file(self, name: str, text: str) -> None:
        """A text file in the recording's folder, beside its messages."""
        try:
            (self.partial / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise BagError(f"cannot write {self.path / name}: {error.strerror}") from error

    def write(self, topic: str, stamp_ns: int, data: bytes | memoryview) -> None:
        """Append a message. topic: declared before. stamp_ns: recording time. data: CDR bytes with their header."""
        if topic not in self._connections:
            raise BagError(f"topic {topic} of {self.path} was not declared with add_topic")
        try:
            self._writer.write(self._connections[topic], stamp_ns, data)
        except _WRITE_ERRORS as error:
            raise BagError(f"cannot write {self.path}: {error}") from error

    def close(self) -> None:
        """Write the index and give the recording its name."""
        if self._folder is None:
            return
        try:
            self._writer.close()
            if self.path.exists():  # made by somebody else meanwhile; a rename would go into it or fail half-way
                raise BagError(f"{self.path} exists already; nothing is overwritten")
            self.partial.rename(self.path)
        except _WRITE_ERRORS as error:
            raise BagError(f"cannot write {self.path}: {error}") from error
        finally:
            self._remove()

    def discard(self) -> None:
        """Close without a recording."""
        if self._folder is not None:
            with suppress(*_WRITE_ERRORS):  # it goes away; what ended it is what counts
                self._writer.abort()
            self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
