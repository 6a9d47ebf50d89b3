"""Writes recordings of images in the forms in which ROS 2 stores them; reads the recordings of `multi-dnn replay`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from builtin_interfaces.msg import Time
from harness import raw_image, stamp_ns
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from networks import Block, block_boxes, block_image, found_boxes
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import Image
from std_msgs.msg import Header

TOPIC = "/front/image_raw"
DETECTIONS = "/multi_dnn/front/object/detections"
#: Frames are a tenth of a second apart; each is recorded 2 ms after its stamp.
PERIOD_NS = 100_000_000
DELAY_NS = 2_000_000
FIRST_NS = 1_700_000_000_000_000_000

_STORE = get_typestore(Stores.ROS2_JAZZY)
_TYPE = "sensor_msgs/msg/Image"


def image_message(pixels: np.ndarray, number: int) -> Image:
    """The frame of this number, from RGB pixels."""
    seconds, nanoseconds = divmod(FIRST_NS + number * PERIOD_NS, 1_000_000_000)
    message = raw_image(pixels)
    message.header = Header(stamp=Time(sec=seconds, nanosec=nanoseconds), frame_id="camera")
    return message


#: What each frame of a drive shows, and the frames with their topic.
BLOCKS = [[Block(n % 4, 3 * n % 4, n % 3), Block((n + 2) % 4, n % 4, (n + 1) % 3, 200)] for n in range(6)]
FRAMES = [(TOPIC, image_message(block_image(*blocks), number)) for number, blocks in enumerate(BLOCKS)]


def check_results(results: list[tuple[int, Any]], numbers: list[int]) -> None:
    """One result for each frame of these numbers, in order, with its stamp, recording time and boxes."""
    assert [time for time, _ in results] == [FIRST_NS + number * PERIOD_NS + DELAY_NS for number in numbers]
    for (_, message), number in zip(results, numbers, strict=True):
        assert (stamp_ns(message), message.header.frame_id) == (FIRST_NS + number * PERIOD_NS, "camera")
        assert found_boxes(message) == block_boxes(*BLOCKS[number])


def write_folder(
    folder: Path, messages: Sequence[tuple[str, Image]] = FRAMES, storage: str = "mcap", compression: str = ""
) -> Path:
    """A rosbag2 folder with metadata.yaml. The messages are pairs of topic and image.

    compression: with zstd, of each `file` or of each `message`, as rosbag2 has it for every storage.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder, version=9, storage_plugin=StoragePlugin[storage.upper()])
    if compression:
        writer.set_compression(CompressionMode[compression.upper()], CompressionFormat.ZSTD)
    with writer:
        topics = {topic: writer.add_connection(topic, _TYPE, typestore=_STORE) for topic in dict(messages)}
        for topic, message in messages:
            writer.write(topics[topic], stamp_ns(message) + DELAY_NS, serialize_message(message))
    return folder


def write_split(folder: Path, messages: Sequence[tuple[str, Image]], storage: str) -> Path:
    """A folder with two files, as `ros2 bag record --max-bag-size` leaves it."""
    half = len(messages) // 2
    first, second = (
        write_folder(folder.with_name(f"{folder.name}_{number}"), part, storage)
        for number, part in enumerate((messages[:half], messages[half:]))
    )
    whole, other = (yaml.safe_load((part / "metadata.yaml").read_text()) for part in (first, second))
    information, rest = (part["rosbag2_bagfile_information"] for part in (whole, other))
    for key in ("relative_file_paths", "files", "message_count"):
        information[key] += rest[key]
    information["topics_with_message_count"][0]["message_count"] = len(messages)
    (first / "metadata.yaml").write_text(yaml.safe_dump(whole))
    shutil.move(second / rest["relative_file_paths"][0], first)
    shutil.rmtree(second)
    return first.rename(folder)


def write_mcap(
    path: Path, messages: Sequence[tuple[str, Image]] = FRAMES, compression: str = "none", *, profile: str = "ros2",
    others: bool = False, **options: Any,
) -> Path:  # fmt: skip
    """A single file, by default with one chunk for each message. others: also with channels that are not CDR.

    options: of mcap's Writer.
    """
    definition, _ = _STORE.generate_msgdef(_TYPE, ros_version=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = McapWriter(file, compression=CompressionType[compression.upper()], **{"chunk_size": 1, **options})
        writer.start(profile=profile, library="test")
        schema = writer.register_schema(_TYPE, "ros2msg", definition.encode())
        channels = {topic: writer.register_channel(topic, "cdr", schema) for topic in dict(messages)}
        if others:
            proto = writer.register_schema("foxglove.CompressedImage", "protobuf", b"\n\x03abc")
            text = writer.register_schema("Status", "jsonschema", b"{}")
            for name, form, kind in (("/viewer/image", "protobuf", proto), ("/status", "json", text), ("/b", "", 0)):
                writer.add_message(writer.register_channel(name, form, kind), FIRST_NS, b"{}", FIRST_NS)
        for number, (topic, message) in enumerate(messages):
            time = stamp_ns(message) + DELAY_NS
            writer.add_message(channels[topic], time, serialize_message(message), time, number)
        writer.finish()
    return path


def read_results(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """By topic: recording time in nanoseconds and message of every result, in the order of the file."""
    results: dict[str, list[tuple[int, Any]]] = {}
    with Reader(folder) as reader:
        for connection, time, data in reader.messages():
            package, _, name = connection.msgtype.split("/")
            kind = getattr(import_module(f"{package}.msg"), name)
            results.setdefault(connection.topic, []).append((time, deserialize_message(bytes(data), kind)))
    return results
