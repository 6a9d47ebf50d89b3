"""Publish a video, images, a USB camera or a generated road.

The images are published on the topic CAMERA/image_raw, or CAMERA/image_raw/compressed with --encoding jpeg or png, at a
fixed rate and stamped with the current time. The frame_id of their headers is the name of the camera.

SOURCE is one of
  FILE.mp4, .avi, ...   a video, at its own rate unless --rate is given
  FOLDER                image files in the order of their names
  /dev/video0           a V4L2 (USB) camera
  scenes                a generated drive on a road; --truth also publishes its exact lanes and boxes

Recordings are played by `ros2 bag play`, or with the node by replay.launch.py.

examples:
  multi-dnn camera drive.mp4 --camera rear --rate 5 --size 640x360 --loop
  multi-dnn camera /dev/video0 --size 1280x720 --encoding bgr8
  multi-dnn camera scenes --seed 7 --truth --count 300 --wait-for-subscribers 1
"""

from __future__ import annotations

import argparse
import sys

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.options import Commands, natural, positive
from multi_dnn_ros.common.errors import CommandError, UsageError

#: Encodings of sensor_msgs/Image, and those of CompressedImage.
ENCODINGS = (
    *("rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "yuv422", "yuv422_yuy2", "nv12"),
    *(f"bayer_{pattern}8" for pattern in ("rggb", "bggr", "gbrg", "grbg")),
)
_COMPRESSED = ("jpeg", "png")
#: How long a camera waits for its subscribers: loading a node takes minutes on a slow machine.
_WAIT_LIMIT_S = 600.0


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = options.add_command(commands, "camera", __doc__, run, takes_ros_args=True)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="what to publish, see above")
    add("--camera", default="front", type=options.camera_name, metavar="NAME",
        help="camera name, the first part of the topic (default: front)")  # fmt: skip
    add("--topic", type=options.topic_name, help="topic to publish on (default: CAMERA/image_raw, see above)")
    options.add_options(parser, "--size", help="size of the images in pixels (default: the source's; scenes: 640x480)")
    add("--encoding", choices=(*ENCODINGS, *_COMPRESSED), default="rgb8", metavar="NAME",
        help=f"{' or '.join(_COMPRESSED)} (CompressedImage), or an encoding of sensor_msgs/Image: "
        f"{', '.join(ENCODINGS)} (default: %(default)s)")  # fmt: skip
    options.add_options(parser, "--seed", help="random seed of the generated scenes (default: 0)")
    add("--truth", action="store_true", help="scenes: publish CAMERA/truth/detections and CAMERA/truth/lane_mask, too")
    add("--rate", type=options.positive_float, metavar="HZ", help="images per second (default: the source's, or 10)")
    add("--count", type=positive, metavar="N",
        help="stop after N images; scenes are then rendered first (default: at the end of the source)")  # fmt: skip
    add("--loop", action="store_true", help="start again at the end of the source")
    add("--wait-for-subscribers", type=natural, default=0, metavar="N",
        help="start when the image topic has N subscribers; fail after ten minutes (default: 0)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Publish until the source ends, --count is reached or the process is stopped."""
    import rclpy
    from rclpy.executors import ExternalShutdownException
    from tqdm import tqdm

    from multi_dnn_ros.camera.publisher import CameraPublisher, Report, play
    from multi_dnn_ros.camera.sources import SceneSource, open_source
    from multi_dnn_ros.ros.middleware import configure
    from multi_dnn_ros.serving.process_settings import configure_malloc

    if args.truth and args.source != "scenes":
        raise UsageError(f"--truth is for the source `scenes`; the truth of {args.source} is not known")
    source = open_source(args.source, size=args.size, rate_hz=args.rate, seed=args.seed, count=args.count)
    if args.loop and source.live:
        raise UsageError(f"--loop is for files; {args.source} is a live camera")
    if args.count is not None and isinstance(source, SceneSource):
        with tqdm(total=source.count, unit="image", desc="rendering", leave=False, disable=None) as bar:
            source.prepare(bar.update)
    configure_malloc()
    middleware, report, complete = configure(), Report(), False
    suffix = "/compressed" if args.encoding in _COMPRESSED else ""
    truth = f"{args.camera}/truth" if args.truth else None
    try:
        rclpy.init(args=["--ros-args", *args.ros_args])
        node = rclpy.create_node(f"camera_{args.camera}")
    except Exception as error:  # a wrong argument, for which rclpy raises several types
        rclpy.try_shutdown()
        raise CommandError(f"rclpy cannot start ({type(error).__name__}): {error}") from error
    try:
        node.get_logger().info(middleware)
        topic = args.topic or f"{args.camera}/image_raw{suffix}"
        publisher = CameraPublisher(node, topic, args.camera, args.encoding, args.size, truth)
        print(f"publishing {source.name} on {publisher.topic}", flush=True)
        publisher.wait_for_subscribers(args.wait_for_subscribers, _WAIT_LIMIT_S, rclpy.ok)
        play(source, publisher.publish, report, rate_hz=args.rate, count=args.count, loop=args.loop, running=rclpy.ok)
        publisher.flush(timeout_s=2.0)
        complete = True
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    except Exception:
        if rclpy.ok():
            raise  # after a signal, publishing fails with various errors
    finally:
        print(report, flush=True)
        node.destroy_node()
        rclpy.try_shutdown()
    for note in source.notes:
        print(f"warning: {note}", file=sys.stderr)
    if complete and not report.published:
        raise CommandError(f"{source.name}: nothing was published")
    return 0
