"""``multi-dnn demo --video``: any video through any DNNs, to an annotated video, a table of results and a recording."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.options import read_config
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from multi_dnn_ros.demo.figures import VideoFigures
    from multi_dnn_ros.demo.video import VideoMessages
    from multi_dnn_ros.replay.replay import FrameOutcome, Replay
    from multi_dnn_ros.replay.summary import Summary
    from multi_dnn_ros.settings.schema import NodeConfig

_NODE = "/multi_dnn"


def run_video(args: argparse.Namespace) -> int:
    """Run the DNNs on every frame of the video. Returns 1 if a DNN has no result, or the video is damaged."""
    for option in ("rate", "size", "seed", "dnns", "domain_id"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} is for the generated road, not for --video")
    if not args.video.exists():
        raise UsageError(f"--video {args.video} does not exist; expected a video, an image or a folder of images")
    config = _config(args)
    if args.precision is not None:
        changed = {name: dnn.model_copy(update={"precision": args.precision}) for name, dnn in config.dnns.items()}
        config = config.model_copy(update={"dnns": changed})

    from multi_dnn_ros.camera.sources import SourceError
    from multi_dnn_ros.common.allocator import configure_malloc
    from multi_dnn_ros.demo.figures import VideoFigures
    from multi_dnn_ros.demo.output_folder import check_output, clear_output
    from multi_dnn_ros.demo.video import VideoMessages
    from multi_dnn_ros.replay.replay import configured_replay

    check_output(args.output, args.video)
    configure_malloc()
    (camera,) = config.cameras
    topic = f"/{camera}/image_raw/compressed"
    try:
        video = VideoMessages(args.video, topic, camera, args.seconds)
    except SourceError as error:
        raise CommandError(str(error)) from None
    replay = configured_replay(config, {camera: topic}, _NODE, lambda line: print(line, file=sys.stderr))
    clear_output(args.output)
    figures = VideoFigures({name: dnn.model for name, dnn in config.dnns.items()})
    summary = _replay(args.output, video, replay, figures)
    figures.write(args.output / "summary.json", summary, video=str(args.video), device=str(replay.device))
    print(figures.table(summary))
    for damage in summary.input_damage:
        print(f"warning: {damage}", file=sys.stderr)
    print(f"written to {args.output}: overlay.mp4, overlay.png, summary.json, bag/")
    silent = [dnn for dnn in config.dnns if not figures.frames(dnn)]
    if silent:
        print(f"FAILED: no result from {', '.join(silent)}")
    return 1 if silent or summary.input_damage else 0


def _config(args: argparse.Namespace) -> NodeConfig:
    """The DNNs of --model on one camera; without --model those of the parameter file on its first camera."""
    from multi_dnn_ros.models.decoder_choice import with_assumed_labels
    from multi_dnn_ros.settings.flat_parameters import to_config

    if not args.model:
        config = read_config(args, _NODE)
        camera = next(iter(config.cameras))
        dnns = {
            name: dnn.model_copy(update={"cameras": []})
            for name, dnn in config.dnns.items()
            if not dnn.cameras or camera in dnn.cameras
        }
        return config.model_copy(update={"cameras": {camera: config.cameras[camera]}, "dnns": dnns})
    models = dict(args.model)
    if len(models) < len(args.model):
        raise UsageError("--model names a DNN twice; give each DNN its own name")
    flat: dict[str, Any] = {"cameras": ["front"], "dnns": list(models)}
    for name, model in models.items():
        flat |= {f"dnn.{name}.role": name, f"dnn.{name}.model": model}
    if args.device is not None:
        flat["device"] = args.device
    config = to_config(flat)
    for name, dnn in config.dnns.items():
        complete = with_assumed_labels(name, dnn)
        if complete is not dnn:
            shown = complete.labels[0] if len(complete.labels) == 1 else f"{complete.labels[0]}, ..."
            print(f"{dnn.model} has no class names; assumed: {shown}", file=sys.stderr)
            config.dnns[name] = complete
    return config


def _replay(output: Path, video: VideoMessages, replay: Replay, figures: VideoFigures) -> Summary:
    from tqdm import tqdm

    from multi_dnn_ros.demo.output_folder import MARK
    from multi_dnn_ros.engine.task import Result
    from multi_dnn_ros.replay.bag_writer import BagWriter
    from multi_dnn_ros.vision.overlay_files import OverlayFiles, save_picture

    with ExitStack() as stack:
        writer = stack.enter_context(BagWriter(output / "bag"))
        writer.add_file(MARK, "")
        overlay = stack.enter_context(OverlayFiles(output / "overlay.mp4"))
        bar = stack.enter_context(tqdm(total=video.frames or None, unit="frame", desc="video", disable=None))
        picture = None
        max_found = -1

        def draw_frame(outcome: FrameOutcome) -> None:
            nonlocal picture, max_found
            found = figures.add(outcome)
            if any(isinstance(end, Result) for end in outcome.in_order()):
                image = outcome.drawn(replay.kinds)
                overlay.write(image, outcome.frame.stamp_ns)
                if found > max_found:
                    picture, max_found = image, found
            bar.update()

        summary = replay.run(video, writer, with_input=True, on_frame=draw_frame)
    if picture is not None:
        save_picture(output / "overlay.png", picture)
    return summary


def model_argument(text: str) -> tuple[str, str]:
    """`object=yolo.onnx` -> ("object", "yolo.onnx")."""
    name, separator, model = text.partition("=")
    if not (name and separator and model):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=MODEL, such as object=yolox_nano.onnx")
    return name, model
