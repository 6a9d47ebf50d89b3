"""The cameras of a benchmark: their settings, and recordings that their processes publish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import CameraFormat, image_message
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.training.scenes import SceneGenerator

_RECORDED_FRAMES = 20


@dataclass(frozen=True)
class CameraPlan:
    """One camera. size: (width, height). encoding: that of its raw images; empty: JPEG, as CompressedImage.

    phase_ms: time of its images after multiples of the period; None: any time. jpeg_decoder: see CameraConfig.
    """

    name: str
    size: tuple[int, int]
    encoding: str
    rate_hz: float
    phase_ms: float | None = None
    jpeg_decoder: str = "auto"

    @property
    def config(self) -> CameraConfig:
        transport = "raw" if self.encoding else "compressed"
        return CameraConfig.model_validate({"transport": transport, "jpeg_decoder": self.jpeg_decoder})

    @property
    def topic(self) -> str:
        return f"/{self.name}/image_raw" + ("" if self.encoding else "/compressed")


def record_drive(path: Path, plan: CameraPlan, seed: int) -> None:
    """Record images that the camera publishes in a loop, so that rendering takes no CPU time from the node."""
    drive = SceneGenerator(*plan.size, seed).drive(_RECORDED_FRAMES, 5.0)
    pixels = [drive.frame(number).image for number in range(_RECORDED_FRAMES)]
    write_recording(path, plan, [np.ascontiguousarray(image) for image in pixels])


def write_recording(
    path: Path, plan: CameraPlan, pictures: Sequence[Any], change: Callable[[Any], None] = lambda message: None
) -> None:
    """Write a bag of a camera's messages. pictures: (H, W, 3) uint8 RGB. change: modifies each message before it is
    written.
    """
    camera_format = CameraFormat(plan.topic, plan.name, compressed=not plan.encoding, encoding=plan.encoding or "rgb8")
    with BagWriter(path) as writer:
        writer.add_topic(plan.topic, f"sensor_msgs/msg/{'Image' if plan.encoding else 'CompressedImage'}")
        for number, image in enumerate(pictures):
            message = image_message(image, Header(stamp=Time(sec=number), frame_id=plan.name), camera_format)
            change(message)
            writer.write(plan.topic, number * 1_000_000_000, bytes(serialize_message(message)))
