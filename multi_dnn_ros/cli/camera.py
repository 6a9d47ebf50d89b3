"""``multi-dnn camera``: publish files, devices and generated scenes on a camera topic."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size, topic_name
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_seed
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.camera.messages import CameraFormat
    from multi_dnn_ros.camera.source import Source

_DETAILS = """\
The images are published on the topic CAMERA/image_raw (compressed ones on CAMERA/image_raw/compressed) at a fixed rate.

SOURCE is one of
  FILE.mp4, .avi, ...   a video, at its own rate unless --rate is given
  FOLDER                image files in the order of their names
  /dev/video0           a V4L2 (USB) camera
  scenes                a generated drive on a road; --truth also publishes its exact lanes and boxes

Recordings are played by `ros2 bag play`, or with the node by replay.launch.py.
"""
_EXAMPLES = """\
multi-dnn camera drive.mp4
multi-dnn camera drive.mp4 --camera rear --rate 5 --size 640x360 --loop
multi-dnn camera pictures/ --rate 2 --transport compressed
multi-dnn camera /dev/video0 --size 1280x720 --encoding bgr8
multi-dnn camera scenes --seed 7 --truth --count 300 --wait-for-subscribers 1
"""
ENCODINGS = (
    *("rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "yuv422", "yuv422_yuy2", "nv12"),
    *(f"bayer_{pattern}8" for pattern in ("rggb", "bggr", "gbrg", "grbg")),
)


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "camera", "publish a video, images, a USB camera or a generated road",
        details=_DETAILS, examples=_EXAMPLES, run=run, takes_ros_args=True,
    )  # fmt: skip
    parser.add_argument("source", metavar="SOURCE", help="what to publish, see above")
    topics = parser.add_argument_group("topic")
    add = topics.add_argument
    add("--camera", default="front", type=camera_name, metavar="NAME",
        help="camera name, the first part of the topic (default: front)")  # fmt: skip
    add(
        "--topic",
        type=topic_name,
        help="topic to publish on (default: CAMERA/image_raw, or CAMERA/image_raw/compressed)",
    )
    add("--frame-id", metavar="NAME", help="frame_id of the headers (default: the camera name)")
    add("--qos", default="default", choices=("sensor_data", "system_default", "default", "reliable"),
        help="QoS profile of the publisher (default: default, which is reliable and volatile, and compatible with all "
        "subscriptions except transient-local ones)")  # fmt: skip
    images = parser.add_argument_group("images")
    add = images.add_argument
    add("--size", type=size, metavar="WxH",
        help="resize to this size in pixels (default: the source's; scenes: 640x480)")  # fmt: skip
    add("--encoding", choices=ENCODINGS, metavar="NAME",
        help=f"encoding of raw images (default: rgb8); allowed: {', '.join(ENCODINGS)}")  # fmt: skip
    add("--transport", choices=("raw", "compressed"),
        help="message type: sensor_msgs/Image or CompressedImage (default: raw)")  # fmt: skip
    add("--format", choices=("jpeg", "png"), default="jpeg", help="format of compressed images (default: jpeg)")
    add_seed(images, "the generated scenes")
    add("--truth", action="store_true",
        help="scenes: also publish the true boxes and lanes, on CAMERA/truth/detections and lane_mask")  # fmt: skip
    add("--prepare", action="store_true",
        help="scenes: render all --count images first, so that rendering takes no CPU time from the node")  # fmt: skip
    add = parser.add_argument_group("timing").add_argument
    add("--rate", type=positive_float, metavar="HZ", help="images per second (default: the source's own, or 10)")
    add("--stamps", choices=("now", "source"), default="now",
        help="time in the headers: the clock, or the source's own time from 0 (default: now)")  # fmt: skip
    add("--count", type=positive, metavar="N", help="stop after N images (default: at the end of the source)")
    add("--loop", action="store_true", help="start again at the end of the source")
    add("--wait-for-subscribers", "--wait", type=natural, default=0, metavar="N",
        help="start when the image topic has N subscribers and each truth topic one, so that none misses the first "
        "image (default: 0)")  # fmt: skip
    add("--wait-timeout", type=positive_float, default=120.0, metavar="S",
        help="fail after waiting this many seconds for the subscribers (default: 120)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Publish until the source ends, --count is reached or the process is stopped."""
    from multi_dnn_ros.camera.sources import open_source

    source = open_source(args.source, size=args.size, rate_hz=args.rate, seed=args.seed, count=args.count)
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
    node = None
    try:
        try:
            rclpy.init(args=["--ros-args", *args.ros_args])
            node = rclpy.create_node(f"camera_{args.camera}")
        except Exception as error:  # a wrong argument, for which rclpy raises several types
            raise CommandError(f"rclpy cannot start ({type(error).__name__}): {error}") from error
        node.get_logger().info(middleware)
        publisher = CameraPublisher(node, camera_format, f"{args.camera}/truth" if args.truth else None)
        player = Player(
            source,
            publisher,
            now_ns=lambda: int(node.get_clock().now().nanoseconds),
            rate_hz=args.rate,
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
            interrupted = True  # after a signal, publishing fails with various errors
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
    with tqdm(total=source.length, unit="image", desc="rendering", leave=False, disable=None) as bar:
        return PreparedSource(source, progress=bar.update)


def format_for(args: argparse.Namespace, source: Source) -> CameraFormat:
    """Topic and message format of the images of this source.

    Raises UsageError for an option that does not apply to this kind of source.
    """
    from multi_dnn_ros.camera.messages import CameraFormat

    if args.truth and args.source != "scenes":
        raise UsageError(f"--truth is for the source `scenes`; the truth of {args.source} is not known")
    if args.prepare and (args.source != "scenes" or args.count is None):
        raise UsageError("--prepare is for the source `scenes` and needs --count")
    if args.stamps == "source" and source.live:
        raise UsageError(f"--stamps source is for files; {args.source} is a live camera")
    if args.loop and source.live:
        raise UsageError(f"--loop is for files; {args.source} is a live camera")
    if args.encoding and args.transport == "compressed":
        raise UsageError("--encoding is for raw images; use --format with --transport compressed")
    compressed = args.transport == "compressed"
    topic = args.topic or f"{args.camera}/image_raw" + ("/compressed" if compressed else "")
    return CameraFormat(
        topic=topic,
        frame_id=args.frame_id if args.frame_id is not None else args.camera,
        compressed=compressed,
        encoding=args.encoding or "rgb8",
        image_format=args.format,
        size=args.size,
        qos=args.qos,
    )
