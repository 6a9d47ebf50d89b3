"""``multi-dnn camera``: files, devices and generated scenes as a camera topic."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.camera.messages import CameraFormat
    from multi_dnn_ros.camera.source import Source

_DESCRIPTION = """\
Publish pictures as the camera topic CAMERA/image_raw, at an even rate.

SOURCE is one of
  FILE.mp4, .avi, ...   a video, at its own rate unless --rate is given
  FOLDER                its images in the order of their names
  FOLDER or FILE.mcap   a rosbag2 recording: its image messages as they are, at their recorded intervals
  /dev/video0           a V4L2 (USB) camera
  scenes                a generated drive on a road; --truth publishes its exact lanes and boxes as well
"""
_EXAMPLES = """\
examples:
  multi-dnn camera drive.mp4
  multi-dnn camera drive.mp4 --camera rear --rate 5 --size 640x360 --loop
  multi-dnn camera pictures/ --rate 2 --transport compressed
  multi-dnn camera recording/ --bag-topic /camera/color/image_raw
  multi-dnn camera /dev/video0 --size 1280x720 --encoding bgr8
  multi-dnn camera scenes --seed 7 --truth --count 300 --wait-for-subscribers 1
"""
ENCODINGS = (
    *("rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "yuv422", "yuv422_yuy2", "nv12"),
    *(f"bayer_{pattern}8" for pattern in ("rggb", "bggr", "gbrg", "grbg")),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "camera",
        help="publish a video, images, a recording, a USB camera or a generated road as a camera topic",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="what to publish, see above")
    add = parser.add_argument_group("where it goes").add_argument
    add("--camera", default="front", type=camera_name, help="camera name, the first part of the topic (default: front)")
    add("--topic", help="topic of the pictures (default: CAMERA/image_raw, and /compressed behind it)")
    add("--frame-id", help="frame_id of the headers (default: CAMERA; recordings keep theirs)")
    add(
        "--qos",
        default="default",
        choices=("sensor_data", "system_default", "default", "reliable"),
        help="QoS of the publisher; the default, reliable, serves every subscriber",
    )
    add = parser.add_argument_group("pictures").add_argument
    add("--size", type=size, metavar="WxH", help="resize to this (scenes: 640x480 unless given)")
    add("--encoding", choices=ENCODINGS, metavar="NAME", help=f"of raw images (default: rgb8): {', '.join(ENCODINGS)}")
    add("--transport", choices=("raw", "compressed"), help="sensor_msgs/Image or CompressedImage (default: raw)")
    add("--format", choices=("jpeg", "png"), default="jpeg", help="of compressed images (default: jpeg)")
    add("--bag-topic", metavar="TOPIC", help="which image topic of a recording (default: the only one)")
    add("--seed", type=natural, default=0, help="of the generated scenes (default: 0)")
    add("--truth", action="store_true", help="scenes: publish CAMERA/truth/detections and lane_mask too")
    add(
        "--prepare",
        action="store_true",
        help="scenes: draw all --count pictures first, so that drawing takes no CPU time from the node later",
    )
    add = parser.add_argument_group("time").add_argument
    add("--rate", type=positive_float, metavar="HZ", help="pictures a second (default: the source's own, else 10)")
    add("--stamps", choices=("now", "source"), default="now", help="header time: now, or the source's own (from 0)")
    add("--start-at", type=natural, default=0, metavar="N", help="leave out the first N pictures")
    add("--count", type=positive, metavar="N", help="stop after N pictures")
    add("--loop", action="store_true", help="start again at the end")
    add(
        *("--wait-for-subscribers", "--wait"),
        type=natural,
        default=0,
        metavar="N",
        help="begin when N subscribers listen (and one to each truth topic), so that none misses the first picture",
    )
    add("--wait-timeout", type=positive_float, default=120.0, metavar="S", help="longest such wait (default: 120 s)")
    parser.set_defaults(run=run, takes_ros_args=True)


def run(args: argparse.Namespace) -> int:
    """Publish until the source ends, the count is reached or somebody stops us."""
    from multi_dnn_ros.camera.sources import open_source

    source = open_source(
        args.source,
        size=args.size,
        rate_hz=args.rate,
        seed=args.seed,
        count=None if args.count is None else args.start_at + args.count,
        topic=args.bag_topic,
    )
    camera_format = format_for(args, source)
    if args.prepare:
        source = _prepared(source)

    import rclpy
    from rclpy.executors import ExternalShutdownException

    from multi_dnn_ros.camera.playback import Player
    from multi_dnn_ros.camera.publisher import CameraPublisher
    from multi_dnn_ros.common.allocator import configure_malloc
    from multi_dnn_ros.ros.middleware import configure

    configure_malloc()
    middleware = configure()
    rclpy.init(args=["--ros-args", *args.ros_args])
    node = None
    try:
        node = rclpy.create_node(f"camera_{args.camera}")
        node.get_logger().info(middleware.text)
        publisher = CameraPublisher(
            node, camera_format, f"{args.camera}/truth" if args.truth else None, node.get_logger().warning
        )
        player = Player(
            source,
            publisher,
            now_ns=lambda: int(node.get_clock().now().nanoseconds),
            rate_hz=args.rate,
            start_at=args.start_at,
            count=args.count,
            loop=args.loop,
            source_stamps=args.stamps == "source",
            running=rclpy.ok,
        )
        print(f"publishing {source.name} on {publisher.topic}", flush=True)
        interrupted = False
        try:
            publisher.wait_for_subscribers(args.wait_for_subscribers, args.wait_timeout, rclpy.ok)
            player.play()
            publisher.flush(timeout_s=2.0)
        except (KeyboardInterrupt, ExternalShutdownException):
            interrupted = True
        except Exception:
            if rclpy.ok():
                raise
            interrupted = True  # the signal came in the middle of publishing, which then fails in one way or another
        print(player.report, flush=True)
    finally:
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
    for note in player.report.notes:
        print(f"warning: {note}", file=sys.stderr)
    if player.report.published == 0 and not interrupted:
        raise CommandError(f"{source.name}: nothing was published")
    return 0


def _prepared(source: Source) -> Source:
    from tqdm import tqdm

    from multi_dnn_ros.camera.generated import PreparedSource, SceneSource

    assert isinstance(source, SceneSource)
    with tqdm(total=source.length, unit="picture", desc="drawing", leave=False, disable=None) as bar:
        return PreparedSource(source, progress=bar.update)


def format_for(args: argparse.Namespace, source: Source) -> CameraFormat:
    """How pictures of this source go out.

    Raises UsageError: an option that does not apply to such a source.
    """
    from multi_dnn_ros.camera.messages import CameraFormat
    from multi_dnn_ros.camera.sources import BagSource

    recorded = isinstance(source, BagSource)
    recorded_compressed = isinstance(source, BagSource) and source.msgtype.endswith("/CompressedImage")
    if recorded and (args.size or args.encoding or args.transport):
        raise UsageError(
            "a recording's messages are published as they are: leave out --size, --encoding and --transport"
        )
    if args.bag_topic and not recorded:
        raise UsageError(f"--bag-topic is for recordings; {args.source} is none")
    if args.truth and args.source != "scenes":
        raise UsageError(f"--truth is for scenes; of {args.source} no truth is known")
    if args.prepare and (args.source != "scenes" or args.count is None):
        raise UsageError("--prepare is for scenes and needs --count")
    if args.stamps == "source" and source.live:
        raise UsageError(f"--stamps source is for files; {args.source} delivers now")
    if args.loop and source.live:
        raise UsageError(f"--loop is for files; {args.source} has no end")
    if args.encoding and args.transport == "compressed":
        raise UsageError("--encoding is for raw images; --transport compressed takes --format")
    compressed = args.transport == "compressed" or recorded_compressed
    topic = args.topic or f"{args.camera}/image_raw" + ("/compressed" if compressed else "")
    return CameraFormat(
        topic=topic,
        frame_id=args.frame_id if args.frame_id is not None else "" if recorded else args.camera,
        compressed=compressed,
        encoding=args.encoding or "rgb8",
        image_format=args.format,
        size=args.size,
        qos=args.qos,
    )
