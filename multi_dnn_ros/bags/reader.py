"""Reads a rosbag2 recording: a folder, or one of its .mcap or .db3 files, intact or damaged."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from types import TracebackType

import yaml

from multi_dnn_ros.bags.decompression import DECOMPRESSION_ERRORS, BoundedFile, TooLargeError
from multi_dnn_ros.bags.storage_file import STORAGE_SUFFIXES, BagError, BagMessage, BagTopic, StorageFile
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.natural_order import natural_order

#: Suffix of a storage file that was compressed as a whole.
_PACKED = ".zstd"

#: Maximum number of reported damaged parts.
MAX_DAMAGE = 100


class BagReader:
    """A recording open for reading; a context manager.

    path: a rosbag2 folder with or without ``metadata.yaml`` (a killed recorder writes none), or one .mcap or .db3 file.
    Every intact message of a damaged file is read; nothing is written next to the file. :attr:`damage` lists each
    damaged part: file name without folder, position and error. The text does not depend on where the recording is
    stored. :attr:`notes` lists what is unusual but no damage, such as files beside those of metadata.yaml.
    Raises BagError if the path does not exist or is not a recording, or if nothing in it can be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damage: list[str] = []
        self.notes: list[str] = []
        self._temporary: TemporaryDirectory[str] | None = None
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
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

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
        topics: dict[str, BagTopic] = {}
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
            if not self.path.name.removesuffix(_PACKED).endswith(STORAGE_SUFFIXES):
                raise BagError(f"bag {self.path}: expected a folder, or a file that ends in .mcap or .db3")
            return [self._open_file(self.path)]
        files = self._storage_files()
        if not files:
            more = f" ({'; '.join([*self.notes, *self.damage])})" if self.notes or self.damage else ""
            raise BagError(
                f"{self.path} is not a rosbag2 recording: no usable metadata.yaml and no .mcap or .db3 file{more}"
            )
        opened: list[StorageFile] = []
        for file in files:
            try:
                opened.append(self._open_file(file))
            except BagError as error:
                self._note(str(error))
        if not opened:
            raise BagError(f"{self.path}: none of its files can be read: {'; '.join(self.damage)}")
        return opened

    def _storage_files(self) -> list[Path]:
        """The files that metadata.yaml lists; without a usable one, all, in the recorder's order.

        A Mac leaves files that begin with `._` beside each file.
        """
        found = [file for file in self.path.iterdir() if is_storage_file(file)]
        if listed := self._listed_names():
            present = [self.path / name for name in listed if (self.path / name).exists()]
            for name in listed:
                if not (self.path / name).exists():
                    self._note(f"{name} is missing, which metadata.yaml lists")
            if present:
                if others := sorted({file.name for file in found} - set(listed)):
                    self.notes.append(f"not read, because metadata.yaml does not list it: {', '.join(others)}")
                return present
        # A recorder compresses a file when the next one begins; if it was killed meanwhile, both are there.
        files = [file for file in found if file.suffix != _PACKED or file.with_suffix("") not in found]
        return sorted(files, key=lambda file: natural_order(file.name.removesuffix(_PACKED)))

    def _listed_names(self) -> list[str]:
        """The names in metadata.yaml. Its other entries are not used: the files themselves are more reliable."""
        metadata = self.path / "metadata.yaml"
        if not metadata.exists():
            return []
        try:
            content = yaml.safe_load(metadata.read_text(encoding="utf-8"))
            paths = content["rosbag2_bagfile_information"]["relative_file_paths"]
            return list(dict.fromkeys(PurePath(path).name for path in paths))
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, RecursionError) as error:
            self.notes.append(f"metadata.yaml cannot be used ({summarize_error(error)}); all files are read")
            return []

    def _open_file(self, file: Path) -> StorageFile:
        plain = self._unpacked(file) if file.suffix == _PACKED else file
        return StorageFile(plain, partial(self._note, name=plain.name))

    def _unpacked(self, file: Path) -> Path:
        """A copy of a file that was compressed as a whole, in a temporary folder. Raises BagError."""
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="multi_dnn_ros_")
        target = Path(self._temporary.name) / file.stem
        try:
            with file.open("rb") as source, BoundedFile(source, "rb") as content, target.open("wb") as copy:
                shutil.copyfileobj(content, copy)
        except (OSError, TooLargeError, *DECOMPRESSION_ERRORS) as error:
            raise BagError(f"{file}: cannot be unpacked: {error}") from error
        return target


def is_storage_file(path: Path) -> bool:
    """Whether the name is that of a storage file, which may be compressed as a whole."""
    name = path.name.removesuffix(_PACKED)
    return name.endswith(STORAGE_SUFFIXES) and not name.startswith(".")


def _listing(topics: dict[str, BagTopic]) -> str:
    return ", ".join(f"{topic.name} ({topic.msgtype})" for topic in topics.values()) or "no topics"
