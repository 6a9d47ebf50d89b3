"""Which topic of a recording belongs to which camera."""

from __future__ import annotations

from collections.abc import Mapping

from multi_dnn_ros.bags import BagError, BagReader
from multi_dnn_ros.schema import CameraConfig, NodeConfig

IMAGE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")


def recorded_topics(bag: BagReader, config: NodeConfig, chosen: Mapping[str, str]) -> dict[str, str]:
    """The recorded topic of each camera of `config`.

    chosen: what the user said, by camera; it wins over the camera's own topic. A single camera whose topic is not in
    the recording takes the only image topic there is.
    Raises BagError: a topic is missing or no image topic, or `chosen` names a camera that does not exist.
    """
    if unknown := chosen.keys() - config.cameras.keys():
        raise BagError(f"--topic names camera '{min(unknown)}'; the cameras are {', '.join(config.cameras)}")
    images = [name for name, topic in bag.topics.items() if topic.msgtype in IMAGE_TYPES]
    topics: dict[str, str] = {}
    for camera, settings in config.cameras.items():
        wanted = (chosen[camera],) if camera in chosen else _own_topics(camera, settings)
        found = next((name for name in wanted if name in bag.topics), None)
        if found is None and camera not in chosen and len(config.cameras) == len(images) == 1:
            found = images[0]
        if found is None:
            listing = ", ".join(f"{topic.name} ({topic.msgtype})" for topic in bag.topics.values()) or "no topics"
            raise BagError(f"bag {bag.path} has no topic {' or '.join(wanted)} for camera '{camera}'; it has {listing}")
        if found not in images:
            allowed = " or ".join(IMAGE_TYPES)
            raise BagError(f"topic {found} of bag {bag.path} is {bag.topics[found].msgtype}; a camera is {allowed}")
        topics[camera] = found
    return topics


def _own_topics(camera: str, settings: CameraConfig) -> tuple[str, ...]:
    """Where the live node would look, its own transport first."""
    base = settings.topic or f"{camera}/image_raw"
    raw = base if base.startswith("/") else f"/{base}"
    if settings.topic:
        return (raw,)
    return (f"{raw}/compressed", raw) if settings.transport == "compressed" else (raw, f"{raw}/compressed")
