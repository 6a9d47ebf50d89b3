"""The command ``multi-dnn``: one module of this folder per command.

Such a module has ``add_parser(commands)``, which declares its arguments
(:func:`multi_dnn_ros.cli.options.add_command`), and ``run(args) -> int``, which does the work and returns the exit
code. Large libraries are imported inside ``run``, so that ``--help`` answers quickly. A command that needs optional
libraries (:mod:`multi_dnn_ros.common.extras`) sets their import names as the default ``libraries``.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from multi_dnn_ros import __version__
from multi_dnn_ros.cli.options import HelpFormatter, check_outputs
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import MissingExtra, optional, require
from multi_dnn_ros.serving.process_settings import check_process, with_memory_limit

#: Commands by the heading that `--help` lists them under.
GROUPS = {
    "try it without a camera": ("demo",),
    "run DNNs on cameras and recordings": ("run", "build", "camera", "replay"),
    "check a model of your own": ("inspect",),
    "reduce a DNN's cost offline": ("decompose", "retrain", "evaluate", "fleet"),
    "measure and plan": ("devices", "profile", "partition", "benchmark"),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)
#: Modules of commands that cannot be named after the command: a module `inspect` could hide Python's own.
MODULES = {"inspect": "inspect_model"}

_DEBUG_VARIABLE = "MULTI_DNN_DEBUG"
_DESCRIPTION = """\
Run several camera DNNs (lanes, objects, pedestrians, or your own models) at once on one GPU or CPU.

`run` starts a ROS 2 node that subscribes to camera topics and publishes the results. The other commands demonstrate the
node, make DNNs cheaper before they run on the robot, and measure them. MODEL in a command is a built-in network
(builtin:object), a torchvision network (torchvision:resnet50), or a .pt2, .onnx or .safetensors file.
"""
_EXAMPLES = """\
examples:
  multi-dnn demo                                   node and camera on a generated road, with scores and a video
  multi-dnn camera drive.mp4 --rate 10             publish a video on the topic front/image_raw, 10 images per second
  multi-dnn replay drive.mcap results              run every frame of a recording, none dropped
  multi-dnn inspect my.onnx --image road.jpg       describe a model, and draw what it finds in an image
  multi-dnn decompose builtin:object --output object.safetensors
  multi-dnn retrain object.safetensors --data road --output better.safetensors
  multi-dnn evaluate builtin:object better.safetensors --data road --latency

`multi-dnn COMMAND --help` explains a command and its options.
"""

#: Maximum number of pixels of an image that OpenCV decodes. OpenCV reads the variable when it is loaded.
_OPENCV_LIMIT = ("OPENCV_IO_MAX_IMAGE_PIXELS", str(1 << 27))
#: Errors that say enough for the user: their message is shown without their type.
_REPORTED = (UsageError, CommandError, MissingExtra, ValueError, OSError, LookupError, TimeoutError)


def build_parser(verbs: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """The parser of the command line. verbs: the commands that it accepts, each of which takes time to import."""
    parser = argparse.ArgumentParser(
        prog="multi-dnn",
        usage="multi-dnn [-h] [--version] [--debug] COMMAND ...",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"multi-dnn {__version__}")
    parser.add_argument(
        "--debug", action="store_true", help=f"show the traceback of an error (or set {_DEBUG_VARIABLE}=1)"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog=parser.prog, help=argparse.SUPPRESS
    )
    for verb in verbs:
        importlib.import_module(f"multi_dnn_ros.cli.{MODULES.get(verb, verb)}").add_parser(commands)
    if len(verbs) == len(VERBS):
        summaries = {action.dest: action.help for action in commands._choices_actions}
        groups = (
            "\n".join((f"{heading}:", *(f"  {verb:<11}{summaries[verb]}" for verb in listed)))
            for heading, listed in GROUPS.items()
        )
        parser.description = "\n\n".join((_DESCRIPTION, *groups))
    return parser


def split_ros_args(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate our arguments from ``--ros-args ... [--]``, which ROS 2 tools append and rclpy parses."""
    ours: list[str] = []
    ros: list[str] = []
    inside = False
    for argument in argv:
        if argument == "--ros-args":
            inside = True
        elif inside and argument == "--":
            inside = False
        else:
            (ros if inside else ours).append(argument)
    return ours, ros


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: sys.argv[1:]) and return the exit code."""
    ours, ros_args = split_ros_args(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault(*_OPENCV_LIMIT)
    # The help and the error about an unknown command list all; a command needs only its own parser.
    parser = build_parser(ours[:1] if ours[:1] and ours[0] in VERBS else VERBS)
    args = parser.parse_args(ours)
    args.ros_args = ros_args
    program = f"{parser.prog} {args.command}"
    try:
        check_process()
        if ros_args and not getattr(args, "takes_ros_args", False):
            raise UsageError("--ros-args are for commands that start a ROS node: run, camera")
        require(args.command, *getattr(args, "libraries", ()))
        check_outputs(args)
        with optional(args.command):
            return int(args.run(args))
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has exited, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  so that the flush at exit does not fail as well
        return 1
    except Exception as error:
        if args.debug or os.environ.get(_DEBUG_VARIABLE, "") not in ("", "0"):
            traceback.print_exc()
        for line in lines_of(error):
            print(f"{program}: error: {line}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def lines_of(error: Exception) -> list[str]:
    """A line for each of an error's `problems`; one for every other error, with its type if it is unexpected."""
    if problems := getattr(error, "problems", ()):
        return [" ".join(problem.split()) for problem in problems]
    text = " ".join(str(error).split())
    if isinstance(error, _REPORTED) and not isinstance(error, KeyError) and text:
        # An OSError without a file: a library that cannot be loaded, or a process that cannot be started.
        return [with_memory_limit(text) if getattr(error, "filename", "") is None else text]
    help_text = "unexpected error; `multi-dnn --debug COMMAND ...` shows the traceback"
    return [with_memory_limit(f"{type(error).__name__}: {text} ({help_text})")]


if __name__ == "__main__":
    sys.exit(main())
