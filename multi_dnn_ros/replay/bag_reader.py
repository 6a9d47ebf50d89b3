"""Reads a rosbag2 recording without a ROS graph: a folder, or one of its .mcap or .db3 files."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

import yaml

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.replay.storage_files import BagError, BagMessage, BagTopic, McapFile, SqliteFile, StorageFile, zstd
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.vision.image_files import natural_order

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_FORMATS: dict[str, type[StorageFile]] = {".mcap": McapFile, ".db3": SqliteFile}
#: Suffix of a storage file that was compressed as a whole.
_PACKED = ".zstd"


class BagReader(ExitStack):
    """A recording open for reading; a context manager.

    path: a rosbag2 folder with or without ``metadata.yaml`` (a killed recorder writes none), or one .mcap or .db3 file.
    Nothing is written beside it. :attr:`notes` lists what is unusual but no damage, such as files beside those of
    metadata.yaml. Raises BagError if the path does not exist or is not a recording, or if nothing in it can be read.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = Path(path)
        self.notes: list[str] = []
        self._damage: list[str] = []
        self._files: list[StorageFile] = []
        self.topics: dict[str, BagTopic] = {}
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def damage(self) -> list[str]:
        """The damaged files with the reason, complete after reading; they are named without their folder, so that the
        text does not depend on it.
        """
        return [*self._damage, *(f"{file.name}: {file.damage}" for file in self._files if file.damage)]

    @property
    def listing(self) -> str:
        """The topics with their types, for messages."""
        return ", ".join(f"{topic.name} ({topic.msgtype})" for topic in self.topics.values()) or "no topics"

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """The messages on `topics` (None: all), file by file in order of recording time.

        A damaged file ends after its last whole message, and is then listed in :attr:`damage`.
        """
        wanted = set(self.topics if topics is None else topics)
        if unknown := wanted - self.topics.keys():
            raise BagError(f"{self.path} has no topic {', '.join(sorted(unknown))}; it has {self.listing}")
        for file in self._files:
            yield from file.messages(wanted)

    def _open(self) -> None:
        if not self.path.exists():
            raise BagError(f"bag {self.path} does not exist")
        if not self.path.is_dir() and not is_storage_file(self.path):
            raise BagError(f"bag {self.path}: expected a folder, or a file that ends in .mcap or .db3")
        paths = [self.path / name for name in self._storage_files()] if self.path.is_dir() else [self.path]
        if not paths:
            found = "; ".join([*self.notes, *self._damage]) or "no usable metadata.yaml and no .mcap or .db3 file"
            raise BagError(f"{self.path} is not a rosbag2 recording: {found}")
        for path in paths:
            try:
                plain = self._unpacked(path) if path.suffix == _PACKED else path
                file = _FORMATS[plain.suffix](plain)
            except BagError as error:
                self._damage.append(str(error).replace(f"{self.path}/", ""))
                continue
            self.callback(file.close)
            self._files.append(file)
            for topic in file.topics:
                known = self.topics.get(topic.name, BagTopic(topic.name, topic.msgtype, 0))
                if known.msgtype != topic.msgtype:
                    types = f"{known.msgtype} and {topic.msgtype}"
                    raise BagError(f"{self.path}: topic {topic.name} has two types, {types}")
                self.topics[topic.name] = BagTopic(topic.name, topic.msgtype, topic.count + known.count)
        if not self._files:
            raise BagError(f"{self.path}: none of its files can be read: {'; '.join(self._damage)}")

    def _storage_files(self) -> list[str]:
        """The files that metadata.yaml lists; without a usable one, all, in the recorder's order."""
        found = {file.name for file in self.path.iterdir() if is_storage_file(file)}
        listed = self._listed_names()
        present = [name for name in listed if (self.path / name).exists()]
        for name in (name for name in listed if name not in present):
            self._damage.append(f"{name} is missing, which metadata.yaml lists; repair: ros2 bag reindex")
        if not present:
            # A recorder compresses a file when the next one begins; if it was killed meanwhile, both are there.
            files = [name for name in found if not name.endswith(_PACKED) or name.removesuffix(_PACKED) not in found]
            return sorted(files, key=lambda name: natural_order(name.removesuffix(_PACKED)))
        if others := sorted(found - set(listed)):
            self.notes.append(f"not read, because metadata.yaml does not list it: {', '.join(others)}")
        return present

    def _listed_names(self) -> list[str]:
        """The names in metadata.yaml. Its other entries are not used: the files themselves are more reliable."""
        try:
            content = yaml.safe_load((self.path / "metadata.yaml").read_text(encoding="utf-8"))
            paths = content["rosbag2_bagfile_information"]["relative_file_paths"]
            return list(dict.fromkeys(PurePath(path).name for path in paths))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, RecursionError) as error:
            self.notes.append(f"metadata.yaml cannot be used ({summarize_error(error)}); all files are read")
            return []

    def _unpacked(self, file: Path) -> Path:
        """A copy of a file that was compressed as a whole, in a temporary folder. Raises BagError."""
        target = Path(self.enter_context(TemporaryDirectory(prefix="multi_dnn_ros_"))) / file.stem
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


def recorded_topics(bag: BagReader, cameras: Mapping[str, CameraConfig], chosen: Mapping[str, str]) -> dict[str, str]:
    """The recorded topic of each camera.

    chosen: topics that the user has chosen, by camera; they override the configured ones. A single camera whose topic
    is not in the recording takes the only image topic. Raises BagError if a topic is missing or is no image topic, if
    two cameras have the same topic, or if `chosen` names an unknown camera.
    """
    if unknown := chosen.keys() - cameras.keys():
        raise BagError(f"--topic names camera '{min(unknown)}'; the cameras are {', '.join(cameras)}")
    images = [name for name, topic in bag.topics.items() if topic.msgtype in IMAGE_TYPES]
    topics: dict[str, str] = {}
    for camera, settings in cameras.items():
        given = chosen.get(camera) or (settings.topic and f"/{settings.topic.lstrip('/')}")
        wanted = [given] if given else [f"/{camera}/image_raw", f"/{camera}/image_raw/compressed"]
        if settings.transport == "compressed":
            wanted.reverse()
        found = next((name for name in wanted if name in bag.topics), "")
        if not found and camera not in chosen and len(cameras) == len(images) == 1:
            found = images[0]
        where = f"topic {found or ' or '.join(wanted)} of camera '{camera}' in bag {bag.path}"
        if not found:
            damage = f" (damaged: {'; '.join(bag.damage)})" if bag.damage else ""
            raise BagError(f"{where}{damage} does not exist; it has {bag.listing}")
        if found not in images:
            raise BagError(f"{where} is {bag.topics[found].msgtype}; must be {' or '.join(IMAGE_TYPES)}")
        if found in topics.values():
            raise BagError(f"{where} is that of another one; choose one for each: --topic CAMERA:=TOPIC")
        topics[camera] = found
    return topics
