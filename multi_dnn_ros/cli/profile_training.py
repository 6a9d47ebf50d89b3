"""``multi-dnn profile training``: one distributed training step, layer by layer, and its predicted scaling."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural, positive, positive_float
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_loading, add_model
from multi_dnn_ros.cli.options import add_device, add_seed, check_writable
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.settings.precisions import TRAINING_PRECISIONS

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.profiling.training.interconnect import Link

_DETAILS = """\
Several processes train copies of a network on random images and average their gradients in two ways: each layer reduces
its own gradients as soon as its backward pass ends, or DistributedDataParallel reduces buckets of several layers.
For each layer the command prints the times of forward, backward, all-reduce and optimizer, their operations and bytes,
the bound of the device's roofline, and the time in which the step only waited for the layer's all-reduce (exposed).

The step is predicted, here and for more processes, from the layer times without communication and a fit of the
interconnect. Processes on several hosts are started by torchrun:

  torchrun --nnodes 2 --nproc-per-node N ... -m multi_dnn_ros.cli.main profile training MODEL
"""
_EXAMPLES = """\
multi-dnn profile training torchvision:resnet50 --gpus 2 --batch 64 --output out/training
multi-dnn profile training builtin:lane --processes 2 --device cpu --batch 2
multi-dnn profile training torchvision:vgg16 --gpus 2 --per-host 8 --host-link 5:25
"""


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare the action."""
    parser = add_command(
        actions, "training", "time a distributed training step layer by layer, and predict its scaling",
        details=_DETAILS, examples=_EXAMPLES, run=_training,
    )  # fmt: skip
    add_model(parser, what="network to train")
    add_loading(parser, weights="")
    add = parser.add_argument
    add("--processes", "--gpus", type=positive, metavar="N",
        help="processes, each on its own GPU or on a part of the CPU's cores (default: one per GPU, or 2)")  # fmt: skip
    add("--batch", type=positive, default=8, metavar="N", help="images per process (default: %(default)s)")
    add_device(parser)
    add("--precision", choices=TRAINING_PRECISIONS, default="bf16",
        help="precision of the forward pass on a GPU; CPUs compute in fp32 (default: %(default)s)")  # fmt: skip
    add("--threads", type=natural, default=0, metavar="N",
        help="threads inside one CPU operation; 0: cores divided by processes (default: %(default)s)")  # fmt: skip
    add("--repeats", type=positive, default=10, metavar="N",
        help="steps of each kind; means of the faster half are reported (default: %(default)s)")  # fmt: skip
    add_seed(parser, "images and labels")
    add("--bucket-mib", type=positive_float, default=25.0, metavar="MIB",
        help="size of DDP's buckets (default: %(default)s)")  # fmt: skip
    add("--limits", type=Path, metavar="JSON",
        help="cache of measured device limits (default: ~/.cache/multi_dnn_ros/devices.json)")  # fmt: skip
    add("--longest", type=positive, default=15, metavar="N", help="number of layers to print (default: %(default)s)")
    add("--output", type=Path, metavar="DIR",
        help="folder for training.json, layers.csv, timeline.png and scaling.png")  # fmt: skip
    group = parser.add_argument_group("interconnect and prediction")
    add = group.add_argument
    add("--sweep-to", type=positive_float, default=256.0, metavar="MIB",
        help="largest all-reduce to measure; the smallest is 4 kB (default: %(default)s)")  # fmt: skip
    add("--predict-to", type=positive, default=64, metavar="N",
        help="largest number of processes to predict (default: %(default)s)")  # fmt: skip
    add("--per-host", type=positive, metavar="N",
        help="processes per host in predictions; several hosts need --host-link (default: all on one)")  # fmt: skip
    add("--link", type=_link, metavar="US:GB/S",
        help="predict with this latency (in microseconds: on GPUs, of an all-reduce; on a CPU, of a step of the ring) "
        "and bandwidth (in GB per second) inside a host (default: as measured)")  # fmt: skip
    add("--host-link", type=_link, metavar="US:GB/S",
        help="predict with this latency (of a step of the ring) and bandwidth between hosts "
        "(default: only one host)")  # fmt: skip


def _training(args: argparse.Namespace) -> int:
    if args.output is not None:
        require("--output", "matplotlib")
        check_writable("--output", args.output / "training.json")
    from multi_dnn_ros.common.reporting import cpu_count, provenance
    from multi_dnn_ros.pipeline.choices import choose_device
    from multi_dnn_ros.planning.device import busy_warning, default_path
    from multi_dnn_ros.profiling.training.interconnect import Link
    from multi_dnn_ros.profiling.training.measure import Request, measure_training
    from multi_dnn_ros.profiling.training.processes import check_processes, local_processes, run_here, run_processes
    from multi_dnn_ros.profiling.training.profile import make_profile
    from multi_dnn_ros.profiling.training.report import (
        closing_lines,
        layer_table,
        method_table,
        scaling_table,
        write_profile,
    )

    device = choose_device(args.device, "--device is")
    processes = local_processes() or args.processes or _default_processes(device)
    check_processes(processes, device)
    if args.per_host is not None and args.per_host < args.predict_to and args.host_link is None:
        raise UsageError(
            f"--per-host {args.per_host} with --predict-to {args.predict_to} means several hosts; give --host-link "
            "US:GB/S"
        )
    if args.sweep_to * 2**20 < 16 << 10:
        raise UsageError(f"--sweep-to is {args.sweep_to:g} MiB; it must be at least 0.0157 (two sizes)")
    busy = "" if local_processes() else busy_warning(device)
    request = Request(
        args.model, args.weights, args.num_classes, args.size, args.batch,
        args.precision if device.type == "cuda" else "fp32", args.repeats,
        args.threads or max(1, cpu_count() // processes), args.seed, args.bucket_mib, int(args.sweep_to * 2**20),
        args.limits or default_path(),
    )  # fmt: skip
    with progress_bar(args.model, "step") as progress:
        if processes == 1 or local_processes():
            measured = run_here(measure_training, request, device, progress)
        else:
            measured = run_processes(measure_training, request, processes, device, progress)
    if measured is None:  # another process prints
        return 0
    # With gloo and over a network each step of the ring has a latency; between GPUs of a host see interconnect.py.
    on_cpu, several_hosts = device.type == "cpu", measured[0].processes > measured[0].per_host
    profile = make_profile(
        args.model, args.batch, measured, inside=_as_link(args.link, Link, on_cpu),
        between=_as_link(args.host_link, Link, True), per_step=on_cpu or several_hosts,
        per_host=args.per_host, predict_to=args.predict_to, bucket_mib=args.bucket_mib,
    )  # fmt: skip
    print(f"{profile.model}: {profile.processes} processes, {profile.batch} images each, {profile.target}\n")
    for text in (layer_table(profile, args.longest), method_table(profile)):
        print(text, end="\n\n")
    if profile.scaling:
        print(f"predicted, not measured:\n\n{scaling_table(profile)}\n")
    print("\n".join([*closing_lines(profile), *([f"warning: {busy}"] if busy else [])]))
    if args.output is not None:
        write_profile(args.output, profile, **provenance())
        print(f"written to {args.output}")
    return 0


def _default_processes(device: torch.device) -> int:
    import torch

    return torch.cuda.device_count() if device.type == "cuda" else 2


def _link(text: str) -> tuple[float, float]:
    latency, _, bandwidth = text.partition(":")
    try:
        values = float(latency), float(bandwidth)
    except ValueError:
        values = math.nan, math.nan
    if not (0.0 <= values[0] < 1e9 and 0.0 < values[1] < 1e9):
        raise argparse.ArgumentTypeError(f"'{text}' is not LATENCY:BANDWIDTH in microseconds and GB per second")
    return values


def _as_link(values: tuple[float, float] | None, link: type[Link], per_step: bool) -> Link | None:
    return link(values[0] * 1e-6, values[1] * 1e9, per_step) if values is not None else None
