"""Reads a rosbag2 recording without a ROS graph: a folder, or one of its .mcap or .db3 files."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from types import TracebackType

import yaml

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.natural_order import natural_order
from multi_dnn_ros.replay.storage_files import BagError, BagMessage, BagTopic, McapFile, SqliteFile, StorageFile, zstd

_FORMATS: dict[str, type[StorageFile]] = {".mcap": McapFile, ".db3": SqliteFile}
#: Suffix of a storage file that was compressed as a whole.
_PACKED = ".zstd"


class BagReader:
    """A recording open for reading; a context manager.

    path: a rosbag2 folder with or without ``metadata.yaml`` (a killed recorder writes none), or one .mcap or .db3 file.
    Nothing is written beside it. :attr:`notes` lists what is unusual but no damage, such as files beside those of
    metadata.yaml. Raises BagError if the path does not exist or is not a recording, or if nothing in it can be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._damage: list[str] = []
        self._files: list[StorageFile] = []
        self._temporary: TemporaryDirectory[str] | None = None
        try:
            self._open()
            self.topics = self._merged_topics()
        except BaseException:
            self.close()
            raise

    @property
    def damage(self) -> list[str]:
        """The damaged files with the reason, complete after reading; they are named without their folder, so that the
        text does not depend on it.
        """
        return [*self._damage, *(f"{file.name}: {file.damage}" for file in self._files if file.damage)]

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """The messages on `topics` (None: all), file by file in order of recording time.

        A damaged file ends after its last whole message, and is then listed in :attr:`damage`.
        """
        wanted = set(self.topics if topics is None else topics)
        if unknown := wanted - self.topics.keys():
            raise BagError(f"{self.path} has no topic {', '.join(sorted(unknown))}; it has {_listing(self.topics)}")
        for file in self._files:
            yield from file.messages(wanted)

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        for file in self._files:
            file.close()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _merged_topics(self) -> dict[str, BagTopic]:
        topics: dict[str, BagTopic] = {}
        for topic in (topic for file in self._files for topic in file.topics):
            known = topics.get(topic.name, BagTopic(topic.name, topic.msgtype, 0))
            if known.msgtype != topic.msgtype:
                raise BagError(f"{self.path}: topic {topic.name} has two types, {known.msgtype} and {topic.msgtype}")
            topics[topic.name] = BagTopic(topic.name, topic.msgtype, topic.count + known.count)
        return topics

    def _open(self) -> None:
        if not self.path.exists():
            raise BagError(f"bag {self.path} does not exist")
        if self.path.is_file():
            if not is_storage_file(self.path):
                raise BagError(f"bag {self.path}: expected a folder, or a file that ends in .mcap or .db3")
            self._files.append(self._open_file(self.path))
            return
        names = self._storage_files()
        if not names:
            more = f" ({'; '.join([*self.notes, *self._damage])})" if self.notes or self._damage else ""
            raise BagError(
                f"{self.path} is not a rosbag2 recording: no usable metadata.yaml and no .mcap or .db3 file{more}"
            )
        for name in names:
            try:
                self._files.append(self._open_file(self.path / name))
            except BagError as error:
                self._damage.append(str(error).replace(f"{self.path}/", ""))
        if not self._files:
            raise BagError(f"{self.path}: none of its files can be read: {'; '.join(self._damage)}")

    def _storage_files(self) -> list[str]:
        """The files that metadata.yaml lists; without a usable one, all, in the recorder's order."""
        found = {file.name for file in self.path.iterdir() if is_storage_file(file)}
        listed = self._listed_names()
        self._damage += [
            f"{name} is missing, which metadata.yaml lists; repair: ros2 bag reindex"
            for name in listed
            if not (self.path / name).exists()
        ]
        if present := [name for name in listed if (self.path / name).exists()]:
            if others := sorted(found - set(listed)):
                self.notes.append(f"not read, because metadata.yaml does not list it: {', '.join(others)}")
            return present
        # A recorder compresses a file when the next one begins; if it was killed meanwhile, both are there.
        files = [name for name in found if not name.endswith(_PACKED) or name.removesuffix(_PACKED) not in found]
        return sorted(files, key=lambda name: natural_order(name.removesuffix(_PACKED)))

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
        return _FORMATS[plain.suffix](plain)

    def _unpacked(self, file: Path) -> Path:
        """A copy of a file that was compressed as a whole, in a temporary folder. Raises BagError."""
        if self._temporary is None:
            self._temporary = TemporaryDirectory(prefix="multi_dnn_ros_")
        target = Path(self._temporary.name) / file.stem
        try:
            with zstd.open(file, "rb") as content, target.open("wb") as copy:
                shutil.copyfileobj(content, copy)
        except (OSError, EOFError, zstd.ZstdError) as error:
            raise BagError(f"{file}: cannot be unpacked: {error}") from error
        return target


def is_storage_file(path: Path) -> bool:
    """Whether the name is that of a storage file. A Mac leaves files that begin with `._` beside each file."""
    name = path.name.removesuffix(_PACKED)
    return name.endswith(tuple(_FORMATS)) and not name.startswith(".")


def _listing(topics: dict[str, BagTopic]) -> str:
    return ", ".join(f"{topic.name} ({topic.msgtype})" for topic in topics.values()) or "no topics"
