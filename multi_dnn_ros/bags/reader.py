"""Reads a rosbag2 recording: a folder, or one of its .mcap or .db3 files, intact or damaged."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader

import multi_dnn_ros.bags.decompression  # noqa: F401  bounds what the rosbags reader decompresses
from multi_dnn_ros.bags.storage_file import (
    READ_ERRORS,
    STORAGE_SUFFIXES,
    BagError,
    BagMessage,
    BagTopic,
    StorageFile,
    has_index,
)
from multi_dnn_ros.common.natural_order import natural_order

#: Maximum number of reported damaged parts.
MAX_DAMAGE = 100


class BagReader:
    """A recording open for reading; a context manager.

    path: a rosbag2 folder with or without ``metadata.yaml`` (a killed recorder writes none), or one .mcap or .db3 file.
    Every intact message of a damaged file is read; nothing is written next to the file. :attr:`damage` lists each
    damaged part: file name without folder, position and error. The text does not depend on where the recording is
    stored.
    Raises BagError if the path does not exist or is not a recording, or if nothing in it can be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damage: list[str] = []
        self._folder: Reader | None = None
        self._listed: list[Connection] = []
        try:
            self._files = self._open()
            self.topics = self._merged_topics()
        except BaseException:
            self.close()
            raise

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """The messages on `topics` (None: all), file by file in order of recording time.

        Damage found while reading is added to :attr:`damage` instead of raising an error; reading continues.
        """
        wanted = set(self.topics if topics is None else topics)
        if unknown := wanted - self.topics.keys():
            raise BagError(f"{self.path} has no topic {', '.join(sorted(unknown))}; it has {_listing(self.topics)}")
        for file in self._files:
            try:
                yield from file.messages(wanted)
            except BagError as error:  # the rest of this file is unreadable
                self._note(str(error))

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        for file in getattr(self, "_files", ()):
            file.close()
        self._files = []
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, damage: str, name: str = "") -> None:
        """Add an entry to :attr:`damage`. name: name of the damaged file, unless the text has it."""
        text = f"{name}: {damage}" if name else damage
        folder = self.path.parent if self.path.is_file() else self.path
        if folder != Path():
            text = text.replace(f"{folder}/", "").replace(f"{folder}: ", "")
        if text not in self.damage and len(self.damage) <= MAX_DAMAGE:
            self.damage.append(text if len(self.damage) < MAX_DAMAGE else f"more than {MAX_DAMAGE} damaged parts")

    def _merged_topics(self) -> dict[str, BagTopic]:
        topics = {x.topic: BagTopic(x.topic, x.msgtype, 0) for x in self._listed}
        for topic in (topic for file in self._files for topic in file.topics()):
            known = topics.get(topic.name, BagTopic(topic.name, topic.msgtype, 0))
            if known.msgtype != topic.msgtype:
                raise BagError(f"{self.path}: topic {topic.name} has two types, {known.msgtype} and {topic.msgtype}")
            topics[topic.name] = BagTopic(topic.name, topic.msgtype, topic.count + known.count)
        return topics

    def _open(self) -> list[StorageFile]:
        if not self.path.exists():
            raise BagError(f"bag {self.path} does not exist")
        if self.path.is_file():
            if self.path.suffix not in STORAGE_SUFFIXES:
                raise BagError(f"bag {self.path}: expected a folder, or a file that ends in .mcap or .db3")
            return [StorageFile(self.path, partial(self._note, name=self.path.name))]
        failure = ""
        if (self.path / "metadata.yaml").exists():
            try:
                if (listed := self._open_listed()) is not None:
                    return listed
            except READ_ERRORS as error:
                failure = str(error)
        found = (file for file in self.path.iterdir() if file.suffix in STORAGE_SUFFIXES)
        files = sorted(found, key=lambda file: natural_order(file.name))  # the recorder's order
        for packed in sorted(self.path.glob("*.zstd")):
            if packed.with_suffix("") not in files:
                self._note(f"{packed}: skipped, readable only with metadata.yaml; unpack it with `unzstd`")
        opened: list[StorageFile] = []
        for file in files:
            try:
                opened.append(StorageFile(file, partial(self._note, name=file.name)))
            except BagError as error:
                self._note(str(error))
        if failure and not self.damage:
            self._note(failure)
        if not files:
            more = f" ({'; '.join(self.damage)})" if self.damage else ""
            raise BagError(
                f"{self.path} is not a rosbag2 recording: no usable metadata.yaml and no .mcap or .db3 file{more}"
            )
        if not opened:
            raise BagError(f"{self.path}: none of its files can be read: {'; '.join(self.damage)}")
        return opened

    def _open_listed(self) -> list[StorageFile] | None:
        """The files listed in metadata.yaml; None if one of them has no index.

        Raises an exception if the files do not match metadata.yaml, or if one is damaged.
        """
        if not all(has_index(file) for file in self.path.iterdir() if file.suffix in STORAGE_SUFFIXES):
            return None
        self._folder = Reader(self.path)
        try:
            self._folder.open()
            # The rosbags reader takes its topics from metadata.yaml and silently skips others.
            storages: list[Any] = getattr(self._folder.storage, "storages", [])
            for recorded in (connection for storage in storages for connection in storage.connections):
                if recorded.msgcount and not any(_same_topic(recorded, listed) for listed in self._folder.connections):
                    raise BagError(
                        f"metadata.yaml lists {recorded.topic} with another type or definition than the file, or not "
                        f"at all (file: {recorded.msgtype})"
                    )
            self._listed = list(self._folder.connections)
            # storage.path: the file or, if it was compressed as a whole, its decompressed copy in a temporary folder.
            return [
                StorageFile(Path(storage.path), partial(self._note, name=Path(storage.path).name), storage)
                for storage in storages
            ]
        except BaseException:
            if self._folder.is_open:
                self._folder.close()
            self._folder = None
            self._listed = []
            raise


def _same_topic(found: Connection, listed: Connection) -> bool:
    """Whether the rosbags reader would treat the two as the same topic."""
    hashes = found.digest, listed.digest
    return (found.topic, found.msgtype, found.ext) == (listed.topic, listed.msgtype, listed.ext) and (
        not all(hashes) or hashes[0] == hashes[1]
    )


def _listing(topics: dict[str, BagTopic]) -> str:
    return ", ".join(f"{topic.name} ({topic.msgtype})" for topic in topics.values()) or "no topics"
