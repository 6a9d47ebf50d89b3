"""A subscriber that only counts the images of its topics: the minimum cost of receiving them in a Python node."""

from __future__ import annotations

import argparse
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image

from multi_dnn_ros.benchmark.peers.arrivals import Arrivals
from multi_dnn_ros.benchmark.peers.spinning import spin


class Counter:
    """Counts the messages of `topics`."""

    def __init__(self, node: Node, kind: Any, topics: list[str]) -> None:
        self.arrivals = Arrivals()
        self._subscriptions = [
            node.create_subscription(kind, topic, self._receive, QoSProfile(depth=10)) for topic in topics
        ]

    def _receive(self, message: Any) -> None:
        self.arrivals.add()


def main() -> None:
    """Count until a signal comes, then print the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--transport", choices=("raw", "compressed"), default="raw")
    args = parser.parse_args()
    kind = Image if args.transport == "raw" else CompressedImage
    counter = spin("counter", lambda node: Counter(node, kind, args.topic))
    if counter is not None:  # else the signal came while it started
        print(counter.arrivals.text(), flush=True)


if __name__ == "__main__":
    main()
