"""A simple rclpy camera that does not use this package."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", default="/front/image_raw")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--jpeg", type=Path, help="publish this file as sensor_msgs/CompressedImage")
    parser.add_argument("--rate", type=float, default=30.0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--qos", choices=("reliable", "best_effort"), default="reliable")
    parser.add_argument("--settle", type=float, default=4.0, help="seconds between the first subscription and image 1")
    args = parser.parse_args()
    rclpy.init()
    node = rclpy.create_node("plain_camera")
    qos = QoSProfile(depth=10, reliability=ReliabilityPolicy[args.qos.upper()])
    publisher = node.create_publisher(CompressedImage if args.jpeg else Image, args.topic, qos)
    width, height = (int(number) for number in args.size.split("x"))
    if args.jpeg:
        message = CompressedImage(format="jpeg", data=args.jpeg.read_bytes())
    else:
        message = Image(width=width, height=height, encoding="bgr8", step=3 * width, data=bytes(3 * width * height))
    message.header.frame_id = "front"
    while publisher.get_subscription_count() == 0:
        time.sleep(0.05)
    time.sleep(args.settle)
    begin = time.monotonic()
    print(f"first image at {time.time():.3f}", flush=True)
    for index in range(args.count):
        time.sleep(max(0.0, begin + index / args.rate - time.monotonic()))
        message.header.stamp = node.get_clock().now().to_msg()
        publisher.publish(message)
    seconds = time.monotonic() - begin
    print(f"sent {args.count} in {seconds:.2f} s", flush=True)
    time.sleep(3.0)  # reliable: what is lost is sent again
    node.destroy_node()
    rclpy.shutdown()


if __name__ == "__main__":
    main()
