"""``multi-dnn profile``: every layer's time, alone and beside other work, and what follows from it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural, positive, size
from multi_dnn_ros.cli.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.compression.timing import Target
    from multi_dnn_ros.profiling.measure import Progress
    from multi_dnn_ros.profiling.profile import Profile

_DESCRIPTION = """\
Where a DNN's time goes on this machine, layer by layer.

  layers      what each layer and job computes, moves and takes, against what the device could do at best
"""
_LAYERS = """\
Time every layer in its place in the running network, with the data and the caches that it finds there, and print the
longest layers, the kinds of layers, the jobs, and whether the layers add up to the network as it is served.

MODEL is what the node takes, or a classifier of torchvision: builtin:<name>, torchvision:<builder>, a .pt2, .onnx or
.safetensors file. The bound of a layer is the roofline's: its arithmetic at the device's best rate or its bytes at the
best rate of its memory, whichever takes longer; both rates are measured on the device once and kept. A layer can be
under its bound when its data comes out of a cache.
"""
_EXAMPLES = """\
examples:
  multi-dnn profile layers builtin:object
  multi-dnn profile layers torchvision:resnet50 --jobs 8 --cut measured --output out/profile
  multi-dnn profile layers people.onnx --device cuda --backend cuda_graph --precision fp16
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "profile",
        help="every layer's time against what the device could do",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    layers = _action(actions, "layers", "time of every layer and job, roofline, plots", _LAYERS)
    add = layers.add_argument
    add("models", metavar="MODEL", nargs="+", help="builtin:<name>, torchvision:<builder>, or a file")
    _add_network(layers)
    add("--jobs", type=positive, default=4, help="jobs that the network is cut into (default: %(default)s)")
    add("--cut", choices=("estimate", "count", "measured"), default="estimate",
        help="what the cut evens out: operations and bytes, the number of layers, or measured times (default: "
        "%(default)s)")  # fmt: skip
    _add_target(layers)
    add("--longest", type=positive, default=15, metavar="N", help="layers in the table (default: %(default)s)")
    add("--output", type=Path, metavar="DIR", help="write profile.json, layers.csv and pictures there, by model")
    add("--summary", type=Path, metavar="JSON", help="write the sums and wholes of all models to one file")
    layers.set_defaults(run=_layers)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, brief: str, description: str
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name, help=brief, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default="", help="of a torchvision builder: a file, a name, random (default; times are the same)")
    add("--num-classes", type=natural, default=0, metavar="N", help="of a torchvision builder (default: its own)")
    add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where and how").add_argument
    add("--device", default="auto", help="auto, cpu, cuda, cuda:<number> (default: %(default)s)")
    add("--backend", default="auto", help="as the node's parameter dnn.<dnn>.backend (default: %(default)s)")
    add("--precision", choices=("fp32", "fp16"), default="fp32", help="default: %(default)s")
    add("--batch", type=positive, default=1, help="images at once (default: %(default)s)")
    add("--threads", type=positive, metavar="N", help="threads inside one CPU operation (default: a core each)")
    add("--repeats", type=positive, default=25, metavar="N", help="rounds; medians count (default: %(default)s)")
    add("--seed", type=natural, default=0, help="of the input and the order of rounds (default: %(default)s)")
    add("--limits", type=Path, metavar="JSON", help="cache of devices (default: ~/.cache/multi_dnn_ros/devices.json)")


def _layers(args: argparse.Namespace) -> int:
    from multi_dnn_ros.benchmark.report import provenance, write_json
    from multi_dnn_ros.profiling.device import busy_warning, default_path, limits_of
    from multi_dnn_ros.profiling.network import load, profile_network
    from multi_dnn_ros.profiling.report import closing_lines, job_table, kind_table, layer_table, write_profile

    with _target(args) as target:
        networks = [
            load(model, weights=args.weights, num_classes=args.num_classes, size=args.size) for model in args.models
        ]
        busy = busy_warning(target.device)
        limits = limits_of(target, args.limits or default_path(), keep=not busy)
        profiles = []
        for network in networks:
            with progress_bar(network.name) as progress:
                measured = profile_network(
                    network,
                    target,
                    limits,
                    jobs=args.jobs,
                    cut_by=args.cut,
                    seed=args.seed,
                    warnings=(busy,) if busy else (),
                    progress=progress,
                    cut=args.cut,
                    **provenance(),
                )
            profiles.append(measured)
            print(f"\n{measured.model}: {len(measured.layers)} layers, {measured.target}\n")
            for text in (layer_table(measured, args.longest), kind_table(measured), job_table(measured)):
                print(text, end="\n\n")
            print("\n".join(closing_lines(measured)))
            if args.output is not None:
                folder = args.output / _file_name(network.name) if len(networks) > 1 else args.output
                write_profile(folder, measured)
                print(f"written to {folder}")
    if args.summary is not None:
        write_json(args.summary, {**provenance(), **_summary(profiles)})
        print(f"summary in {args.summary}")
    return 0


def _summary(profiles: list[Profile]) -> dict[str, Any]:
    return {
        "target": profiles[0].target,
        "limits": profiles[0].limits.model_dump(),
        "models": [
            {
                "model": profile.model,
                "layers": len(profile.layers),
                "macs": sum(layer.work.macs for layer in profile.layers),
                "whole_ms": profile.whole.model_dump(),
                "sum_of_layers_ms": profile.sum_ms,
                "sum_over_whole": profile.closure,
                "bound_ms": sum(layer.bound_ms for layer in profile.layers),
                "jobs_ms": [job.ms.p50 for job in profile.jobs],
                "longest_job_over_mean": profile.imbalance,
                "disturbed_rounds": profile.disturbed,
                "warnings": list(profile.warnings),
            }
            for profile in profiles
        ],
    }


@contextmanager
def _target(args: argparse.Namespace) -> Iterator[Target]:
    """The device and backend of the arguments, with PyTorch's threads set for as long as it is used."""
    import torch

    from multi_dnn_ros.compression.timing import Target
    from multi_dnn_ros.pipeline import BACKENDS, choose_backend, choose_device, cpu_count

    if args.backend != "auto" and args.backend not in BACKENDS:
        raise UsageError(f"--backend is '{args.backend}'; allowed: auto, {', '.join(BACKENDS)}")
    device = choose_device(args.device)
    chosen = choose_backend(args.backend, device)
    name = next(name for name, kind in BACKENDS.items() if isinstance(chosen, kind))
    before = torch.get_num_threads()
    torch.set_num_threads(args.threads or (cpu_count() if device.type == "cpu" else before))
    try:
        yield Target(
            device, name, lambda: choose_backend(args.backend, device), args.precision, args.batch, args.repeats
        )
    finally:
        torch.set_num_threads(before)


def _file_name(model: str) -> str:
    return Path(model).name.replace(":", "_")


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    from tqdm import tqdm

    with tqdm(unit="round", desc=what, disable=None, leave=False) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.n = done
            bar.refresh()

        yield update
