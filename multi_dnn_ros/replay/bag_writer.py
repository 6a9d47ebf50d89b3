"""Writes a rosbag2 recording, by rosbags, that gets its name only once it is complete."""

from __future__ import annotations

import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ament_index_python.packages import get_package_share_directory
from rosbags import interfaces
from rosbags.interfaces import Connection, Nodetype
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
from rosbags.rosbag2.enums import CompressionFormat, CompressionMode
from rosbags.typesys import get_types_from_msg
from rosbags.typesys.store import Typestore

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
from multi_dnn_ros.replay.storage_files import BagError
from multi_dnn_ros.vision.overlay_files import AtomicWriter

Storage = Literal["mcap", "sqlite3"]
#: Stem of the storage file. Independent of the folder's name, so that equal recordings have identical files; readers
#: take the name from metadata.yaml.
_STEM = "recording"
_WRITE_ERRORS = (OSError, sqlite3.Error, WriterError)
_NO_TIME = interfaces.QosTime(0, 0)
_LATCHED = interfaces.Qos(
    interfaces.QosHistory.KEEP_LAST, 1, interfaces.QosReliability.RELIABLE, interfaces.QosDurability.TRANSIENT_LOCAL,
    _NO_TIME, _NO_TIME, interfaces.QosLiveliness.AUTOMATIC, _NO_TIME, False,
)  # fmt: skip


class BagWriter(AtomicWriter):
    """A recording open for writing; a context manager.

    It is written into a temporary folder beside `path`, which is renamed on close; an exception inside the `with`
    block, or :meth:`discard`, removes it. Its files depend only on the written content, not on path, time or user.
    path: the folder to create. storage: `mcap` (chunks compressed with zstd) or `sqlite3`.
    Raises BagError if the path exists, if its parent cannot be written, or, while writing, if the disk is full.
    """

    def __init__(self, path: str | Path, storage: Storage = "mcap") -> None:
        self.path = Path(path)
        if self.path.exists():
            raise BagError(f"{self.path} already exists; nothing is overwritten")
        absolute = self.path.absolute()
        self._connections: dict[str, Connection] = {}
        self._folder: Path | None = None
        try:
            with self._named_errors():
                absolute.parent.mkdir(parents=True, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix=f"{absolute.name}.tmp-", dir=absolute.parent))
                # The rosbags writer names the storage file after its folder.
                self._writer = Writer(self._folder / _STEM, version=9, storage_plugin=StoragePlugin[storage.upper()])
                if storage == "mcap":
                    self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
                self._writer.open()
        except BaseException:  # a signal, too, must not leave the folder
            self._remove()
            raise

    def add_topic(self, topic: str, msgtype: str, *, latched: bool = False) -> None:
        """Declare a topic, so that it is listed even without messages.

        latched: offered as transient local, so that a player republishes it to late subscribers.
        Raises LookupError if the message type is not installed.
        """
        if topic not in self._connections:
            text, type_hash = definition(msgtype)
            with self._named_errors():
                self._connections[topic] = self._writer.add_connection(
                    topic, msgtype, msgdef=text, rihs01=type_hash, offered_qos_profiles=[_LATCHED] if latched else []
                )

    def add_file(self, name: str, text: str) -> None:
        """Add a text file to the recording's folder."""
        assert self._folder is not None
        with self._named_errors():
            (self._folder / _STEM / name).write_text(text, encoding="utf-8")

    def write(self, topic: str, stamp_ns: int, data: bytes | memoryview) -> None:
        """Append a message. topic: a declared topic. stamp_ns: recording time. data: CDR bytes with header."""
        with self._named_errors():
            self._writer.write(self._connections[topic], stamp_ns, data)

    def close(self) -> None:
        """Write the index and give the recording its name. Raises BagError, also if the path exists by now."""
        if self._folder is None:
            return
        try:
            with self._named_errors():
                self._writer.close()
                (self._folder / _STEM).rename(self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close without keeping the recording."""
        if self._folder is not None:
            with suppress(*_WRITE_ERRORS):  # the recording is removed anyway; report only the original error
                self._writer.abort()
            self._remove()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except _WRITE_ERRORS as error:
            raise BagError(f"cannot write {self.path}: {error}") from error

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


@functools.cache
def definition(msgtype: str) -> tuple[str, str]:
    """The .msg text followed by the texts of its nested types, and the RIHS01 type hash.

    Both come from the .msg files of the installed packages, so that they match the running ROS 2, even for types that
    the rosbags library does not know (vision_msgs). Raises LookupError if the type is not installed.
    """
    store = _typestore(msgtype)
    return store.generate_msgdef(msgtype, ros_version=2)[0], store.hash_rihs01(msgtype)


def canonical(msgtype: str, data: bytes) -> bytes:
    """The CDR bytes of a message with zeros as padding.

    Middlewares differ: Fast DDS leaves uninitialized memory in the alignment gaps, so equal messages have different
    bytes in each run. Raises LookupError if the type is not installed.
    """
    store = _typestore(msgtype)
    return bytes(store.serialize_cdr(store.deserialize_cdr(data, msgtype), msgtype))


@functools.cache
def _typestore(msgtype: str) -> Typestore:
    """A type store with a message type and the types nested in it."""
    store = Typestore()
    pending = {msgtype}
    while pending:
        name = pending.pop()
        package, _, short = name.partition("/msg/")
        try:
            path = Path(get_package_share_directory(package), "msg", f"{short}.msg")
            types = get_types_from_msg(path.read_text(encoding="utf-8"), name)
        except (LookupError, ValueError, OSError) as error:
            raise LookupError(f"message type {name} is not installed") from error
        store.register(types)
        pending |= {nested for _, kind in types[name][1] for nested in _named(kind)} - store.fielddefs.keys()
    return store


def _named(kind: Any) -> Iterator[str]:
    """The message types in the type of a field."""
    node, content = kind
    if node == Nodetype.NAME:
        yield content
    elif node in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        yield from _named(content[0])
