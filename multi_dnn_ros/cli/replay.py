"""``multi-dnn replay``: every frame of a recording through the engine, or with ``--live`` through a node."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import positive_float
from multi_dnn_ros.common.allocator import configure_malloc
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.bags import BagReader, BagWriter
    from multi_dnn_ros.replay.frame_order import FrameOutcome
    from multi_dnn_ros.replay.summary import Summary
    from multi_dnn_ros.settings.schema import NodeConfig
    from multi_dnn_ros.vision.overlay_files import OverlayFiles

_DESCRIPTION = """\
Run every frame of a rosbag2 recording through the DNNs and write the results into a new recording.

The topics are those of the live node (/multi_dnn/front/object/detections, ...), each message with the header and the
recording time of its frame. Nothing is dropped for being late: the replay takes the time it needs. On the CPU two
replays of one recording are equal byte for byte. The counts of every DNN and camera are printed and stand in
summary.json in the new recording's folder.

IN_BAG is a folder, or a .mcap or .db3 file. Of a damaged one every whole message is read: each damaged part is named in
a warning and in summary.json, the new recording holds the results of the rest, and the exit code is 1.

With --live the frames go through a node that runs on the ROS graph, started with the parameter autostart false. The
replay sets its cameras to reliable, configures and activates it, publishes /clock and one frame after another, each
when all results of the last one are there, and leaves the node unconfigured again. The new recording is the same as
without --live. The last line is `N of M frames`, the frames of the recording that have the results of every DNN.

Exit code 0: every frame was replayed. 1: the recording is damaged, or with --live N is less than M. 2: wrong usage.
"""
_EXAMPLES = """\
examples:
  multi-dnn replay drive/ results/
  multi-dnn replay drive.mcap results --overlay results.mp4
  multi-dnn replay drive results --params-file robot.yaml --topic front:=/camera/color/image_raw
  multi-dnn replay drive results --with-input --storage sqlite3
  multi-dnn run --ros-args -p autostart:=false     the node for the next line, in another terminal
  multi-dnn replay drive results --live
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "replay",
        help="run every frame of a recording through the DNNs, into a new recording",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("in_bag", type=Path, metavar="IN_BAG", help="rosbag2 folder, .mcap or .db3 file")
    add("out_bag", type=Path, metavar="OUT_BAG", help="folder of the new recording; must not exist")
    add("--params-file", type=Path, metavar="YAML", help="the node's parameters (default: config/multi_dnn.yaml)")
    add(
        "--topic",
        type=_assignment,
        action="append",
        default=[],
        metavar="CAMERA:=TOPIC",
        help="recorded topic of a camera (default: the camera's topic, or the only image topic there is)",
    )
    add("--node", metavar="NAME", help="node name in the output topics, with --live of the node (default: /multi_dnn)")
    add("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, ... (default: the parameter device)")
    add("--storage", choices=("mcap", "sqlite3"), default="mcap", help="format of the new recording (default: mcap)")
    add("--with-input", action="store_true", help="copy the camera messages into the new recording")
    add("--overlay", type=Path, metavar="PATH", help="also draw the results: a .mp4 file, or a folder for pictures")
    add = parser.add_argument_group("through a running node").add_argument
    add("--live", action="store_true", help="through the node on the ROS graph, instead of an engine of its own")
    add("--rate", type=positive_float, metavar="X", help="with --live: highest speed of the playback (default: 1.0)")
    add("--start-timeout", type=positive_float, metavar="S", help="with --live: wait for the node (default: 120 s)")
    parser.set_defaults(run=run, takes_ros_args=True)


def run(args: argparse.Namespace) -> int:
    """Replay, report, and return 1 if the input was damaged."""
    if args.out_bag.exists():
        raise UsageError(f"OUT_BAG {args.out_bag} exists already; nothing is overwritten")
    _check_options(args)
    configure_malloc()
    if args.live:
        from multi_dnn_ros.cli.replay_live import run_live

        args.rate, args.start_timeout = args.rate or 1.0, args.start_timeout or 120.0
        return run_live(args)
    args.node = args.node or "/multi_dnn"
    if not args.node.startswith("/"):
        raise UsageError(f"--node is '{args.node}'; expected a name with its namespace, such as /multi_dnn")
    if args.overlay is not None and args.overlay.exists():
        raise UsageError(f"--overlay {args.overlay} exists already; nothing is overwritten")

    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.params_file import read_params_file

    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"), args.node)
    if args.device is not None:
        config = type(config).model_validate({**config.model_dump(), "device": args.device})

    from multi_dnn_ros.bags import BagReader, BagWriter
    from multi_dnn_ros.replay.recorded_cameras import recorded_topics

    with BagReader(args.in_bag) as bag:
        topics = recorded_topics(bag, config.cameras, dict(args.topic))
        counts = [bag.topics[topic].count for topic in topics.values()]
        if not any(counts):
            raise CommandError(f"bag {args.in_bag} holds no message on {', '.join(topics.values())}")
        with BagWriter(args.out_bag, args.storage) as writer:
            summary = _replay(args, config, bag, writer, topics, sum(counts))
            writer.add_file("summary.json", json.dumps(summary.as_json(), indent=2) + "\n")
    print(summary)
    for damage in summary.input_damage:
        print(f"warning: {args.in_bag}: {damage}", file=sys.stderr)
    print(f"written to {args.out_bag}")
    return 1 if summary.input_damage else 0


def _check_options(args: argparse.Namespace) -> None:
    """UsageError for an option that the way of replaying does not have."""
    if args.live:
        for name in ("params_file", "device", "overlay"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is the node's own with --live: give it to the node")
        return
    for name in ("rate", "start_timeout"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for --live")
    if args.ros_args:
        raise UsageError("--ros-args are for commands that start a ROS node: replay with --live")


def _replay(
    args: argparse.Namespace,
    config: NodeConfig,
    bag: BagReader,
    writer: BagWriter,
    topics: dict[str, str],
    frames: int,
) -> Summary:
    from tqdm import tqdm

    from multi_dnn_ros.engine.task import Result
    from multi_dnn_ros.pipeline.build import build
    from multi_dnn_ros.replay.outputs import decode_message, drawn, label_messages, result_messages
    from multi_dnn_ros.replay.replay import Replay
    from multi_dnn_ros.vision.result_kind import RESULT_KINDS

    pipeline = build(_without_deadlines(config), lambda line: print(line, file=sys.stderr))
    RESULT_KINDS.report_broken()
    kinds = {name: RESULT_KINDS.get(dnn.result_kind) for name, dnn in pipeline.dnns.items()}
    for task in pipeline.tasks:
        for camera in task.cameras:
            for topic in kinds[task.name].topics:
                writer.add_topic(f"{args.node}/{camera}/{task.name}/{topic.name}", topic.msgtype)
    labels = {name: dnn.labels for name, dnn in pipeline.dnns.items() if kinds[name].has_labels}
    thresholds = {name: dnn.decoder.score_threshold for name, dnn in pipeline.dnns.items()}
    replay = Replay(
        pipeline.tasks,
        topics,
        decode=lambda camera, message: decode_message(message, config.cameras[camera].max_pixels),
        to_messages=partial(result_messages, kinds),
        to_latched=lambda header: label_messages(labels, thresholds, header),
        node=args.node,
        workers=pipeline.workers,
        device=pipeline.device,
        max_failures=config.max_failures,
    )
    with ExitStack() as stack:
        bar = stack.enter_context(tqdm(total=frames, unit="frame", desc="replay", disable=None))
        overlays = _overlays(args.overlay, tuple(topics)) if args.overlay is not None else {}
        for overlay in overlays.values():
            stack.enter_context(overlay)

        def draw_frame(outcome: FrameOutcome) -> None:
            if overlays and any(isinstance(end, Result) for end in outcome.in_order()):
                overlays[outcome.frame.camera].write(drawn(kinds, outcome), outcome.frame.stamp_ns)

        return replay.run(bag, writer, with_input=args.with_input, on_frame=draw_frame, progress=bar.update)


def _overlays(path: Path, cameras: tuple[str, ...]) -> dict[str, OverlayFiles]:
    """One video or folder a camera; with several cameras, the camera's name is part of the file's."""
    from multi_dnn_ros.vision.overlay_files import OverlayFiles

    if len(cameras) == 1:
        return {cameras[0]: OverlayFiles(path)}
    return {camera: OverlayFiles(path.with_name(f"{path.stem}_{camera}{path.suffix}")) for camera in cameras}


def _without_deadlines(config: NodeConfig) -> NodeConfig:
    """A recording waits for the DNNs, so that no frame is ever too old."""
    dnns = {name: dnn.model_copy(update={"max_age_ms": 0.0, "deadline_ms": 0.0}) for name, dnn in config.dnns.items()}
    return config.model_copy(update={"dnns": dnns})


def _assignment(text: str) -> tuple[str, str]:
    camera, separator, topic = text.partition(":=")
    if not (camera and separator and topic.startswith("/")):
        raise argparse.ArgumentTypeError(f"'{text}' is not CAMERA:=/TOPIC")
    return camera, topic
