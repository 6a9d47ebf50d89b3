"""Run every frame of a recording through the DNNs and record the results.

The results have the topics of the node (/multi_dnn/front/object/detections, ...); each message has the header and the
recording time of its frame. No frame is dropped for being late. On a CPU two replays of one recording are identical
byte for byte. The counts of every DNN and camera are printed and written to summary.json in the new recording's folder.

IN_BAG is a rosbag2 folder, an .mcap file or a .db3 file. A damaged file is read up to its last whole message; a warning
and summary.json name it and what repairs it, and the exit code is 1.

With --cluster, IN_BAG is a folder: every recording in it is replayed, each as a task of a Ray cluster or in a process
of this machine. OUT_BAG gets a recording of the same name for each, its log, and manifest.json with the outcomes. A
recording that fails does not stop the others. If run again, the command replays only what has no results yet. On
several hosts the folders must have the same paths everywhere.

To play a recording to a node, as on the robot: ros2 launch multi_dnn_ros replay.launch.py bag:=drive

Exit codes: 0 success, also if frames were dropped with an error (see the counts); 1 an error, a damaged recording, an
overlay that could not be written (the results are kept) or, with --cluster, a failed recording; 2 wrong usage.

examples:
  multi-dnn replay drive/ results/
  multi-dnn replay drive.mcap results --overlay results.mp4
  multi-dnn replay drive results --params-file robot.yaml --topic front:=/camera/color/image_raw
  multi-dnn replay drive results --with-input --storage sqlite3
  multi-dnn replay drives/ results --cluster --gpus 0.25
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import not_negative
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_device, add_params_file, check_node, read_config, rows_table
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.serving.memory import configure_malloc

if TYPE_CHECKING:
    from multi_dnn_ros.replay.replay import FrameOutcome
    from multi_dnn_ros.settings.schema import NodeConfig


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "replay", __doc__, run)
    add = parser.add_argument
    add("in_bag", type=Path, metavar="IN_BAG",
        help="recording to read: a rosbag2 folder, .mcap or .db3 file; with --cluster, a folder of them")  # fmt: skip
    add("out_bag", type=Path, metavar="OUT_BAG",
        help="folder of the new recording; must not exist, except with --cluster")  # fmt: skip
    add_params_file(parser)
    add("--topic", type=_assignment, action="append", default=[], metavar="CAMERA:=TOPIC",
        help="recorded topic of a camera; may be repeated (default: the camera's topic, or the only image "
        "topic)")  # fmt: skip
    add("--node", default="/multi_dnn", metavar="NAME",
        help="full name of the node in the topics of the results (default: %(default)s)")  # fmt: skip
    add_device(parser, default=None)
    add("--storage", choices=("mcap", "sqlite3"), default="mcap", help="format of the new recording (default: mcap)")
    add("--with-input", action="store_true", help="copy the camera messages into the new recording")
    add("--overlay", type=Path, metavar="PATH",
        help="also draw the results on the images: PATH is an .mp4 file, or a folder for single images")  # fmt: skip
    add = parser.add_argument_group("many recordings").add_argument
    add("--cluster", nargs="?", const="local", metavar="ADDRESS",
        help="replay every recording under IN_BAG on the Ray cluster at ADDRESS: HOST:PORT, or auto, the cluster of "
        "this machine; without ADDRESS, in processes of this machine")  # fmt: skip
    add("--gpus", type=not_negative, default=0.0, metavar="X",
        help="with --cluster: GPUs, or a part of one, per recording, beside a CPU core (default: 0)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Replay and report. Returns 1 if the input was damaged."""
    check_node(args.node)
    if args.cluster is not None:
        if args.overlay is not None:
            raise UsageError("--overlay is for one recording; it cannot be used with --cluster")
        from multi_dnn_ros.cli.replay_cluster import run_cluster

        return run_cluster(args)
    if args.gpus:
        raise UsageError("--gpus needs --cluster")
    if args.out_bag.exists():
        raise UsageError(f"OUT_BAG {args.out_bag} already exists; nothing is overwritten: name a new folder")
    config = read_config(args, args.node)
    paths = _overlay_paths(args, config)

    from tqdm import tqdm

    configure_malloc()
    from multi_dnn_ros.engine.task import Result
    from multi_dnn_ros.replay.bag_reader import BagReader, recorded_topics
    from multi_dnn_ros.replay.bag_writer import BagWriter
    from multi_dnn_ros.replay.overlays import Overlays
    from multi_dnn_ros.replay.replay import configured_replay

    with _stop_signals(), BagReader(args.in_bag) as bag:
        topics = recorded_topics(bag, config.cameras, dict(args.topic))
        frames = sum(bag.topics[topic].count for topic in topics.values())
        if not frames:
            raise CommandError(
                f"bag {args.in_bag} holds no message on {', '.join(topics.values())}; choose with --topic"
            )
        with BagWriter(args.out_bag, args.storage) as writer:
            replay = configured_replay(config, topics, args.node, lambda line: print(line, file=sys.stderr))
            with Overlays(paths) as overlays, tqdm(total=frames, unit="frame", desc="replay", disable=None) as bar:

                def finish_frame(outcome: FrameOutcome) -> None:
                    if any(isinstance(end, Result) for end in outcome.in_order()):
                        frame = outcome.frame
                        overlays.write(frame.camera, frame.stamp_ns, lambda: outcome.drawn(replay.kinds))
                    bar.update()

                summary = replay.run(bag, writer, with_input=args.with_input, on_frame=finish_frame)
            content = summary.as_json()
            writer.add_file("summary.json", json.dumps(content, indent=2) + "\n")
    print(rows_table(content["streams"]))
    problems = [f"{problem}; the recording of the results is complete" for problem in overlays.problems]
    for text in (*bag.notes, *summary.input_damage, *problems):
        print(f"warning: {text}", file=sys.stderr)
    print(f"written to {args.out_bag}")
    return 1 if summary.input_damage or problems else 0


def _stop_signals() -> AbstractContextManager[object]:
    """Inside the block SIGTERM and SIGHUP are as Ctrl-C: unfinished files are removed.

    Not in a worker of Ray, which has a handler of its own. A parent that ignores SIGTERM leaves it ignored in its
    children: that is no handler.
    """
    from multi_dnn_ros.common.processes import interrupts

    return nullcontext() if callable(signal.getsignal(signal.SIGTERM)) else interrupts()


def _overlay_paths(args: argparse.Namespace, config: NodeConfig) -> dict[str, Path]:
    """The file or folder of --overlay for each camera; empty without --overlay. Raises UsageError, before any work."""
    if args.overlay is None:
        return {}
    from multi_dnn_ros.replay.overlays import overlay_paths
    from multi_dnn_ros.vision.overlay_files import OverlayFileError, check_new_overlay

    out_bag, overlay = args.out_bag.resolve(), args.overlay.resolve()
    if overlay == out_bag or out_bag in overlay.parents:
        raise UsageError(
            f"--overlay {args.overlay} is in OUT_BAG, which gets its name only when it is complete; expected a path "
            "outside of it"
        )
    paths = overlay_paths(args.overlay, config.cameras)
    for path in paths.values():
        try:
            check_new_overlay(path)
        except OverlayFileError as error:
            raise UsageError(f"--overlay: {error}") from None
    return paths


def _assignment(text: str) -> tuple[str, str]:
    camera, separator, topic = text.partition(":=")
    if not (camera and separator and topic.startswith("/")):
        raise argparse.ArgumentTypeError(f"'{text}' is not CAMERA:=/TOPIC")
    return camera, topic
