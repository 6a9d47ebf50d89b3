"""Assigns the topics of a recording to cameras."""

from __future__ import annotations

from collections.abc import Mapping

from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.storage_files import BagError
from multi_dnn_ros.settings.schema import CameraConfig

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")


def recorded_topics(bag: BagReader, cameras: Mapping[str, CameraConfig], chosen: Mapping[str, str]) -> dict[str, str]:
    """The recorded topic of each camera.

    chosen: topics that the user has chosen, by camera; they override the configured ones. A single camera whose topic
    is not in the recording takes the only image topic.
    Raises BagError if a topic is missing or is no image topic, if two cameras have the same topic, or if `chosen` names
    an unknown camera.
    """
    if unknown := chosen.keys() - cameras.keys():
        raise BagError(f"--topic names camera '{min(unknown)}'; the cameras are {', '.join(cameras)}")
    images = [name for name, topic in bag.topics.items() if topic.msgtype in IMAGE_TYPES]
    topics: dict[str, str] = {}
    for camera, settings in cameras.items():
        wanted = (chosen[camera],) if camera in chosen else _configured_topics(camera, settings)
        found = next((name for name in wanted if name in bag.topics), None)
        if found is None and camera not in chosen and len(cameras) == len(images) == 1:
            found = images[0]
        if found is None:
            listing = ", ".join(f"{topic.name} ({topic.msgtype})" for topic in bag.topics.values()) or "no topics"
            damage = f" (damaged: {'; '.join(bag.damage)})" if bag.damage else ""
            raise BagError(
                f"bag {bag.path}{damage} has no topic {' or '.join(wanted)} for camera '{camera}'; it has {listing}"
            )
        if found not in images:
            allowed = " or ".join(IMAGE_TYPES)
            raise BagError(f"topic {found} of bag {bag.path} is {bag.topics[found].msgtype}; must be {allowed}")
        if (other := next((name for name, topic in topics.items() if topic == found), None)) is not None:
            raise BagError(
                f"cameras '{other}' and '{camera}' have the same topic {found} in bag {bag.path}; "
                "choose a separate topic for each: --topic CAMERA:=TOPIC"
            )
        topics[camera] = found
    return topics


def _configured_topics(camera: str, settings: CameraConfig) -> tuple[str, ...]:
    """Topics that the node would use, starting with the configured transport."""
    if settings.topic:
        return (f"/{settings.topic.lstrip('/')}",)
    raw, compressed = f"/{camera}/image_raw", f"/{camera}/image_raw/compressed"
    return (compressed, raw) if settings.transport == "compressed" else (raw, compressed)
