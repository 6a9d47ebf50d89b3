"""The cameras of a benchmark: their settings, and the process that publishes the images of one.

The messages are prepared before the run, so that rendering and encoding take no CPU time from the node.
"""

from __future__ import annotations

import argparse
import itertools
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from rclpy.executors import ExternalShutdownException
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.training.scenes import SceneGenerator

_IMAGES = 20
#: The header's stamp, the first field of both messages, after the CDR encapsulation.
_STAMP, _STAMP_AT = struct.Struct("<iI"), 4
_SUBSCRIBER_LIMIT_S = 120.0


@dataclass(frozen=True)
class CameraPlan:
    """One camera. size: (width, height). encoding: that of its raw images; empty: JPEG, as CompressedImage.

    phase_ms: time of its images after multiples of the period; None: any time.
    """

    name: str
    size: tuple[int, int]
    encoding: str
    rate_hz: float
    phase_ms: float | None = None

    @property
    def config(self) -> CameraConfig:
        return CameraConfig.model_validate({"transport": "raw" if self.encoding else "compressed"})

    @property
    def topic(self) -> str:
        return f"/{self.name}/image_raw" + ("" if self.encoding else "/compressed")


def write_messages(folder: Path, plan: CameraPlan, seed: int) -> None:
    """Write serialized image messages of a drive on a generated road, one file each."""
    folder.mkdir(parents=True)
    drive = SceneGenerator(*plan.size, seed).drive(_IMAGES, 5.0)
    for number in range(_IMAGES):
        pixels = np.ascontiguousarray(drive.frame(number).image)
        message = image_message(pixels, Header(stamp=Time(), frame_id=plan.name), plan.encoding or "jpeg")
        (folder / f"{number:03d}.cdr").write_bytes(bytes(serialize_message(message)))


def arguments(folder: Path, plan: CameraPlan, rate_hz: float) -> list[str]:
    """Command line of the process that publishes these messages."""
    phase = [] if plan.phase_ms is None else ["--phase", f"{plan.phase_ms:g}"]
    return [str(folder), "--topic", plan.topic, "--rate", f"{rate_hz:g}", *phase]


def main(argv: Sequence[str] | None = None) -> int:
    """Publish in a loop, with the present time as stamp, from the first subscription until SIGINT."""
    parser = argparse.ArgumentParser(description="Publishes prepared image messages in a loop.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--phase", type=float, help="ms after multiples of the period")
    args = parser.parse_args(argv)
    messages = [bytearray(path.read_bytes()) for path in sorted(args.folder.glob("*.cdr"))]
    from multi_dnn_ros.ros.middleware import configure

    configure()
    rclpy.init(args=[])
    try:
        node = rclpy.create_node(args.topic.strip("/").replace("/", "_"))
        kind: Any = CompressedImage if args.topic.endswith("/compressed") else Image
        publisher = node.create_publisher(kind, args.topic, QoSProfile(depth=10))
        limit_s = time.monotonic() + _SUBSCRIBER_LIMIT_S
        while publisher.get_subscription_count() == 0:
            if time.monotonic() > limit_s:
                print(f"no subscription of {args.topic} after {_SUBSCRIBER_LIMIT_S:g} s", file=sys.stderr)
                return 1
            time.sleep(0.02)
        _publish(publisher, messages, 1.0 / args.rate, args.phase)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        with suppress(RuntimeError):  # a signal has shut it down
            rclpy.try_shutdown()
    return 0


def _publish(publisher: Any, messages: Sequence[bytearray], period_s: float, phase_ms: float | None) -> None:
    due_s = time.monotonic()
    if phase_ms is not None:
        due_s = (due_s // period_s + 1.0) * period_s + phase_ms / 1e3
    for message in itertools.cycle(messages):
        time.sleep(max(0.0, due_s - time.monotonic()))
        if not rclpy.ok():
            return
        _STAMP.pack_into(message, _STAMP_AT, *divmod(time.time_ns(), 1_000_000_000))
        publisher.publish(bytes(message))
        due_s += period_s
        if time.monotonic() - due_s > 1.0:  # the machine stalled: do not send the backlog
            due_s = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
