"""Records topics during a soak: ``ros2 bag record`` of an installed ROS 2, otherwise a subscriber of this package."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
from multi_dnn_ros.benchmark.soak.spinning import spin
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.storage_files import BagError

ROS2_BAG, SUBSCRIBER = "ros2 bag record", "a subscriber with rosbags"
#: Results of some seconds, so that none is lost while a chunk is written to a slow disk.
_QUEUE_DEPTH = 1000


def recorder() -> str:
    """What records on this machine."""
    return SUBSCRIBER if importlib.util.find_spec("ros2bag") is None else ROS2_BAG


def recorded_counts(path: Path) -> dict[str, int] | None:
    """Number of messages by topic; None if the recording cannot be read or is damaged."""
    try:
        with BagReader(path) as reader:
            counts = {name: topic.count for name, topic in reader.topics.items()}
            return None if reader.damage else counts
    except BagError:
        return None


def arguments(path: Path, topics: Mapping[str, str]) -> list[str]:
    """Arguments of this program. topics: message type by name."""
    return [str(path), *(f"{name}:{kind}" for name, kind in topics.items())]


class _Recording:
    """Writes messages of `topics` as they arrive."""

    def __init__(self, writer: BagWriter, topics: Mapping[str, str], node: Any) -> None:
        from rclpy.qos import QoSProfile

        from multi_dnn_ros.replay.message_definitions import message_class

        self._subscriptions = []
        for name, kind in topics.items():
            writer.add_topic(name, kind)
            self._subscriptions.append(
                node.create_subscription(
                    message_class(kind),
                    name,
                    partial(self._write, writer, name),
                    QoSProfile(depth=_QUEUE_DEPTH),
                    raw=True,
                )
            )

    def _write(self, writer: BagWriter, topic: str, data: bytes) -> None:
        writer.write(topic, time.time_ns(), data)


def _record(path: Path, topics: Mapping[str, str]) -> None:
    with BagWriter(path) as writer:
        spin("recorder", lambda node: _Recording(writer, topics, node))


def main(argv: Sequence[str] | None = None) -> int:
    """Record until SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="folder of the new recording")
    parser.add_argument("topics", nargs="+", metavar="TOPIC:TYPE")
    args = parser.parse_args(argv)
    topics = {name: kind for name, _, kind in (topic.partition(":") for topic in args.topics)}
    if recorder() == SUBSCRIBER:
        _record(args.path, topics)
        return 0
    ros2: Any = importlib.import_module("ros2cli.cli")  # only in a ROS 2 installation
    # Humble takes topics as positional arguments, Jazzy also with --topics, later distributions only with --topics. All
    # have --regex, which is searched for in the names, hence the anchors; topic names have no characters to escape.
    # sys.argv is set because the argument argv of main() does not reach every parser.
    sys.argv = ["ros2", "bag", "record", "--output", str(args.path), "--regex", f"^({'|'.join(topics)})$"]
    code = ros2.main()
    return code if isinstance(code, int) else 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
