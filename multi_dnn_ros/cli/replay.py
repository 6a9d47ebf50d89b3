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

examples:
  multi-dnn replay drive.mcap results --overlay results.mp4
  multi-dnn replay drive results --params-file robot.yaml --topic front:=/camera/color/image_raw
  multi-dnn replay drives/ results --cluster --gpus 0.25
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.figures import rows_table
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.serving.process_settings import configure_malloc

if TYPE_CHECKING:
    from multi_dnn_ros.replay.replay import FrameOutcome


def add_parser(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = options.add_command(commands, "replay", __doc__, run)
    add = parser.add_argument
    add("in_bag", type=Path, metavar="IN_BAG",
        help="recording to read: a rosbag2 folder, .mcap or .db3 file; with --cluster, a folder of them")  # fmt: skip
    add("out_bag", type=Path, metavar="OUT_BAG",
        help="folder of the new recording; must not exist, except with --cluster")  # fmt: skip
    options.add_options(parser, "--params-file", "--node")
    topic = options.assignment(":=", "CAMERA:=/TOPIC", options.absolute_name)
    add("--topic", type=topic, action="append", default=[], metavar="CAMERA:=TOPIC",
        help="recorded topic of a camera; may be repeated (default: its own, or the only one)")  # fmt: skip
    options.add_options(parser, "--device", **options.CONFIGURED_DEVICE)
    add("--storage", choices=("mcap", "sqlite3"), default="mcap", help="format of the new recording (default: mcap)")
    add("--with-input", action="store_true", help="copy the camera messages into the new recording")
    add("--overlay", type=Path, metavar="PATH",
        help="draw the results into an .mp4 file or a folder of images; several cameras: PATH_CAMERA")  # fmt: skip
    add = parser.add_argument_group("many recordings").add_argument
    add("--cluster", nargs="?", const="local", metavar="ADDRESS",
        help="replay every recording under IN_BAG on the Ray cluster at HOST:PORT, or auto; without ADDRESS, in "
        "processes of this machine")  # fmt: skip
    add("--gpus", type=options.not_negative, default=0.0, metavar="X",
        help="with --cluster: GPUs, or a part of one, per recording, beside a CPU core (default: 0)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Replay and report. Returns 1 if the input was damaged."""
    if args.cluster is not None:
        return _run_cluster(args)
    if args.gpus:
        raise UsageError("--gpus needs --cluster")
    if args.out_bag.exists():
        raise UsageError(f"OUT_BAG {args.out_bag} already exists; nothing is overwritten: name a new folder")
    if args.overlay is not None and args.overlay.resolve().is_relative_to(args.out_bag.resolve()):
        raise UsageError(f"--overlay {args.overlay} is in OUT_BAG, which is written as a whole; name another path")
    config = options.read_config(args)

    from tqdm import tqdm

    configure_malloc()
    from multi_dnn_ros.common.processes import interrupts
    from multi_dnn_ros.replay.bag_reader import BagReader, recorded_topics
    from multi_dnn_ros.replay.bag_writer import BagWriter
    from multi_dnn_ros.replay.replay import Replay
    from multi_dnn_ros.vision.overlay_files import OverlayFiles

    with contextlib.ExitStack() as stack:
        # SIGTERM and SIGHUP are as Ctrl-C. Not in a worker of Ray, which has a handler of its own.
        if not callable(signal.getsignal(signal.SIGTERM)):
            stack.enter_context(interrupts())
        overlays = {}
        for camera in config.cameras if args.overlay is not None else ():
            suffix = f"_{camera}" if len(config.cameras) > 1 else ""
            path = args.overlay.with_name(f"{args.overlay.stem}{suffix}{args.overlay.suffix}")
            overlays[camera] = stack.enter_context(OverlayFiles(path))
        bag = stack.enter_context(BagReader(args.in_bag))
        topics = recorded_topics(bag, config.cameras, dict(args.topic))
        frames = sum(bag.topics[topic].count for topic in topics.values())
        if not frames:
            raise CommandError(
                f"bag {args.in_bag} holds no message on {', '.join(topics.values())}; choose with --topic"
            )
        writer = stack.enter_context(BagWriter(args.out_bag, args.storage))
        replay = Replay(config, topics, args.node, lambda line: print(line, file=sys.stderr))
        bar = stack.enter_context(tqdm(total=frames, unit="frame", desc="replay", disable=None))

        def finish_frame(outcome: FrameOutcome) -> None:
            if overlays and outcome.results():
                overlays[outcome.frame.camera].write(outcome.drawn(replay.kinds), outcome.frame.stamp_ns)
            bar.update()

        frames_of_cameras = bag.messages(topics.values())
        counts = replay.run(frames_of_cameras, writer, with_input=args.with_input, on_frame=finish_frame)
        streams = list(map(vars, counts))
        content = {"streams": streams, "input_damage": bag.damage}
        writer.add_file("summary.json", json.dumps(content, indent=2) + "\n")
    print(rows_table(streams))
    for text in (*bag.notes, *bag.damage):
        print(f"warning: {text}", file=sys.stderr)
    print(f"written to {args.out_bag}")
    return 1 if bag.damage else 0


def _run_cluster(args: argparse.Namespace) -> int:
    """Replay every recording that has no results yet. Returns 1 if one failed or is damaged."""
    if args.overlay is not None:
        raise UsageError("--overlay is for one recording; it cannot be used with --cluster")
    from tqdm import tqdm

    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.fleet.units import connected

    source, output, gpus = args.in_bag.absolute(), args.out_bag.absolute(), args.gpus
    manifest = output / "manifest.json"
    recordings = dict(_recordings(source, source, output))
    if not recordings:
        raise UsageError(f"IN_BAG {args.in_bag} holds no recording; with --cluster it is a folder of recordings")
    # The options of each replay, whose process has another working folder.
    words = ["--storage", args.storage, "--node", args.node, *["--with-input"] * args.with_input]
    words += ["--params-file", str(args.params_file.absolute())] if args.params_file is not None else []
    words += ["--device", args.device] if args.device is not None else []
    words += [word for camera, topic in args.topic for word in ("--topic", f"{camera}:={topic}")]
    if manifest.is_file():
        if (before := json.loads(manifest.read_text(encoding="utf-8"))["options"]) != words:
            raise UsageError(f"{manifest} belongs to replays with options {before}, not {words}; name a new folder")
    elif output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"OUT_BAG {output} already exists and has no {manifest.name}; name a new folder")
    outcomes: dict[str, dict[str, str]] = {}
    with connected(args.cluster) as ray, tqdm(total=len(recordings), unit="recording", disable=None) as bar:
        hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(host.get("CPU", 0) >= 1 and host.get("GPU", 0) >= gpus for host in hosts):
            raise CommandError(f"no host of the cluster has the CPU core and the {gpus:g} GPUs for one replay")
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_calls=1, max_retries=2)(replay_one)
        pending = {task.remote(str(path), str(output / name), words): name for name, path in recordings.items()}
        while pending:
            (ended,), _ = ray.wait(list(pending), num_returns=1)
            name = pending.pop(ended)
            try:
                outcomes[name] = ray.get(ended)
            except ray.exceptions.RayError as error:
                outcomes[name] = {"status": "failed", "message": str(error).strip().splitlines()[-1]}
            write_json(manifest, {"options": words, **provenance(), "recordings": outcomes})
            bar.update(1)
            if outcomes[name]["status"] != "done":
                bar.write("{}: {status}: {message}".format(name, **outcomes[name]), file=sys.stderr)
    found = [outcome["status"] for outcome in outcomes.values()]
    counts = ", ".join(f"{found.count(status)} {status}" for status in ("done", "damaged", "failed"))
    print(f"{len(found)} recordings: {counts}\nwritten to {output}; {manifest.name} lists the recordings")
    return 0 if found.count("done") == len(found) else 1


def replay_one(recording: str, output: str, words: list[str]) -> dict[str, str]:
    """One replay, in a process of the cluster. What it prints is appended to a log beside the results.

    Results get their name only when they are complete, so those that exist are not computed again.
    """
    from multi_dnn_ros.cli.main import main

    summary, log = Path(output, "summary.json"), Path(f"{output}.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    if not summary.is_file():
        with (
            log.open("a", buffering=1, encoding="utf-8") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
            contextlib.suppress(SystemExit),
        ):
            main(["replay", recording, output, *words])
    if not summary.is_file():
        lines = log.read_text(encoding="utf-8").splitlines()
        return {"status": "failed", "message": f"{lines[-1] if lines else 'no output'} ({log.name})"}
    damage = json.loads(summary.read_text(encoding="utf-8"))["input_damage"]
    return {"status": "damaged" if damage else "done", "message": "; ".join(damage)}


def _recordings(folder: Path, root: Path, output: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of the rosbag2 folders, and of the .mcap and .db3 files outside them. The results are left out."""
    for path in sorted(folder.iterdir()) if folder.is_dir() and folder != output else ():
        if (path / "metadata.yaml").is_file():
            yield str(path.relative_to(root)), path
        elif path.is_dir() and not path.is_symlink():
            yield from _recordings(path, root, output)
        elif path.suffix in (".mcap", ".db3") and not path.name.startswith("."):  # a Mac's ._name
            yield str(path.relative_to(root).with_suffix("")), path
