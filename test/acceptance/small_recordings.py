"""Recordings of small images, written with rosbags alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

TYPES = get_typestore(Stores.ROS2_JAZZY)
IMAGE = "sensor_msgs/msg/Image"
TOPIC = "/front/image_raw"
SECOND_NS = 10**9


def image(number: int) -> bytes:
    """A serialized image of noise, 64 x 48, whose header stamp is `number` s after the first."""
    pixels = np.random.default_rng(number).integers(0, 256, 48 * 64 * 3, dtype=np.uint8)
    classes = TYPES.types
    header = classes["std_msgs/msg/Header"](classes["builtin_interfaces/msg/Time"](1000 + number, 0), "front")
    message = classes[IMAGE](header, 48, 64, "rgb8", 0, 192, pixels)
    return bytes(TYPES.serialize_cdr(message, IMAGE))


def write_recording(folder: Path, frames: int, storage: StoragePlugin = StoragePlugin.MCAP) -> Path:
    """A recording of one camera at 1 Hz; returns `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Writer(folder, version=9, storage_plugin=storage) as writer:
        camera = writer.add_connection(TOPIC, IMAGE, typestore=TYPES)
        for number in range(frames):
            writer.write(camera, (1000 + number) * SECOND_NS, image(number))
    return folder


def stamps(recording: Path, topic: str) -> Iterator[int]:
    """The header stamps, in seconds after the first image, of the messages on a topic of results."""
    with AnyReader([recording]) as reader:
        for connection, _, data in reader.messages([x for x in reader.connections if x.topic == topic]):
            yield int(reader.deserialize(data, connection.msgtype).header.stamp.sec) - 1000
