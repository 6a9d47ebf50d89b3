"""A subscriber that only counts the images of its topics: the least that a Python node pays to receive them."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.benchmark.peers.spinning import spin


class Counter:
    """Counts the messages of `topics`."""

    def __init__(self, node: Node, kind: Any, topics: list[str]) -> None:
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._subscriptions = [
            node.create_subscription(kind, topic, self._receive, QoSProfile(depth=10)) for topic in topics
        ]

    def _receive(self, message: Any) -> None:
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self._count += 1

    def summary(self) -> dict[str, float]:
        """Messages, and messages per second between the first one and the last."""
        seconds = self._last_s - self._first_s
        return {"messages": self._count, "hz": (self._count - 1) / seconds if seconds else 0.0}


def main() -> None:
    """Count until a signal comes, then print the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--transport", choices=("raw", "compressed"), default="raw")
    args = parser.parse_args()
    kind = Image if args.transport == "raw" else CompressedImage
    counter = spin("counter", lambda node: Counter(node, kind, args.topic))
    print(f"counted {json.dumps(counter.summary())}", flush=True)


if __name__ == "__main__":
    main()
