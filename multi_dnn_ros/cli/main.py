"""The command ``multi-dnn``: one subcommand per module of this folder.

A verb is a module with ``add_parser(subparsers)``, which declares its arguments and sets ``run`` as a default, and
``run(args) -> int``, which does the work and returns the exit code. Modules import what is heavy inside ``run``, so
that ``--help`` answers at once. A verb that cannot work without optional libraries
(:mod:`multi_dnn_ros.common.extras`) sets their import names as the default ``libraries``.

Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from multi_dnn_ros import __version__
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import MissingExtra, require

VERBS = (
    "run",
    "camera",
    "replay",
    "inspect",
    "decompose",
    "retrain",
    "evaluate",
    "profile",
    "partition",
    "demo",
    "benchmark",
)
#: Of verbs whose module has another name: a module `inspect` beside a program would hide Python's own.
_MODULES = {"inspect": "inspect_model"}

_DEBUG_VARIABLE = "MULTI_DNN_DEBUG"
_EXAMPLES = """\
examples:
  multi-dnn demo                                   everything at once on a generated road, with scores
  multi-dnn run                                    the node with its default parameters
  multi-dnn camera drive.mp4 --rate 10             a video as the topic front/image_raw
  multi-dnn camera /dev/video0                     a USB camera
  multi-dnn replay drive.mcap results              every frame of a recording, none dropped
  multi-dnn inspect my.onnx --image road.jpg       what a model is, how to configure it, and what it finds
  multi-dnn decompose builtin:object --output object.safetensors   fewer operations, in one file for the node
  multi-dnn retrain object.safetensors --data road --output better.safetensors   what that cost, got back
  multi-dnn evaluate builtin:object better.safetensors --data road   scores, MACs and times side by side

Each command explains itself: multi-dnn COMMAND --help.
"""

#: Of any picture that OpenCV reads from a file, whatever its header claims; OpenCV looks once, when it is loaded.
_OPENCV_LIMIT = ("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 27))


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, every verb included."""
    parser = argparse.ArgumentParser(
        prog="multi-dnn",
        description="Lane, object and pedestrian DNNs side by side on one device, as a ROS 2 node and offline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"multi-dnn {__version__}")
    parser.add_argument(
        "--debug", action="store_true", help=f"show the traceback of an error (or set {_DEBUG_VARIABLE}=1)"
    )
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for verb in VERBS:
        importlib.import_module(f"multi_dnn_ros.cli.{_MODULES.get(verb, verb)}").add_parser(subparsers)
    return parser


def split_ros_args(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate our own arguments from ``--ros-args ... [--]``, which ROS 2 tools append and which ROS parses."""
    own: list[str] = []
    ros: list[str] = []
    inside = False
    for argument in argv:
        if argument == "--ros-args":
            inside = True
        elif inside and argument == "--":
            inside = False
        else:
            (ros if inside else own).append(argument)
    return own, ros


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    own, ros_args = split_ros_args(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault(*_OPENCV_LIMIT)
    parser = build_parser()
    args = parser.parse_args(own)
    args.ros_args = ros_args
    program = f"{parser.prog} {args.command}"
    try:
        if ros_args and not getattr(args, "takes_ros_args", False):
            raise UsageError("--ros-args are for commands that start a ROS node")
        require(args.command, *getattr(args, "libraries", ()))
        return int(args.run(args))
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  so that the flush at exit does not fail as well
        return 1
    except Exception as error:
        if args.debug or os.environ.get(_DEBUG_VARIABLE, "") not in ("", "0"):
            traceback.print_exc()
        print(f"{program}: error: {describe(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def describe(error: Exception) -> str:
    """An error as one line, for people; an error nobody foresaw carries its type and the way to its traceback."""
    text = " ".join(str(error).split())
    named = (UsageError, CommandError, MissingExtra, ValueError, OSError, LookupError, TimeoutError)
    foreseen = isinstance(error, named)
    if foreseen and not isinstance(error, KeyError) and text:
        return text
    return f"{type(error).__name__}: {text} (unexpected; --debug shows where)"


if __name__ == "__main__":
    sys.exit(main())
