"""Options and checks of the scenario paper, which runs sets of randomly weighted networks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import positive, positive_float
from multi_dnn_ros.cli.options import add_device, add_seed, check_writable
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    import torch


def add_execution(parser: argparse.ArgumentParser, *, repeats: int, repeat: str, seconds: float) -> None:
    """--device, --sms, --jobs, --repeats, --seconds, --seed. repeat: what is repeated, in the plural."""
    add = parser.add_argument
    add_device(parser)
    add("--sms", type=positive, metavar="N",
        help="use only N SMs of the GPU, by a CUDA green context (default: all)")  # fmt: skip
    add("--jobs", type=positive, default=8, metavar="N", help="jobs that a DNN is cut into (default: %(default)s)")
    add("--repeats", type=positive, default=repeats, metavar="N", help=f"{repeat} (default: %(default)s)")
    add("--seconds", type=positive_float, default=seconds, metavar="S",
        help="length of each run in seconds (default: %(default)g)")  # fmt: skip
    add_seed(parser, "weights, images and the order of runs")


def add_output(parser: argparse.ArgumentParser, also: str = "") -> None:
    """--output. also: files that are written beside the JSON."""
    parser.add_argument(
        "--output", type=Path, metavar="JSON", help=f"write the figures to this JSON file{also and f', and {also}'}"
    )


def check_output(output: Path | None) -> None:
    """Check --output before the run.

    Raises UsageError for a file that cannot be written or that has the suffix of the files written beside it, and
    MissingExtra if matplotlib is not installed.
    """
    if output is None:
        return
    require("--output", "matplotlib")
    check_writable("--output", output)
    if output.suffix in (".md", ".png"):
        raise UsageError(f"--output is {output}; expected a JSON file, as {output.name} is written beside it")


def chosen_device(args: argparse.Namespace) -> torch.device:
    """The device of --device. Raises UsageError if it cannot provide --sms SMs."""
    from multi_dnn_ros.benchmark.paper.partition import check_partition
    from multi_dnn_ros.pipeline.choices import choose_device

    device = choose_device(args.device, "--device is")
    check_partition(device, args.sms)
    return device


def print_progress() -> Callable[[str], None]:
    """Return a function that prints a line with the seconds since this call."""
    begin = time.monotonic()
    return lambda text: print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True)
