"""``multi-dnn profile``: every layer's time, alone and beside other work, and what follows from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import profile_fit, profile_learning
from multi_dnn_ros.cli.arguments import natural, positive, size
from multi_dnn_ros.cli.network_arguments import MODEL_HELP, check_writable
from multi_dnn_ros.cli.profile_target import add_target, open_target, progress_bar
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    from multi_dnn_ros.graph.cut import NodeCost
    from multi_dnn_ros.planning.measure import Traced
    from multi_dnn_ros.planning.profile import Profile
    from multi_dnn_ros.planning.timing import Target

_DESCRIPTION = """\
Where a DNN's time goes on this machine, layer by layer.

  layers      what each layer and job computes, moves and takes, against what the device could do at best
  contention  the layers' times beside other work, as a table to learn from
  learn       what decides the time of each kind of layer, in words; a predictor of times, and how well it does
  fit         whether DNNs, cameras and rates fit this machine, which DNN breaks it, and what would help
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
  multi-dnn profile contention torchvision:resnet18 torchvision:mobilenet_v2 builtin:lane --output samples.csv
  multi-dnn profile learn samples.csv --output out/learnt
  multi-dnn profile layers torchvision:resnet152 --jobs 8 --cut predicted --predictor out/learnt/predictor.json
  multi-dnn profile fit --params-file config/multi_dnn.yaml --rate front=30
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
    layers = actions.add_parser(
        "layers", help="time of every layer and job, roofline, plots", description=_LAYERS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = layers.add_argument
    add("models", metavar="MODEL", nargs="+", help=MODEL_HELP)
    _add_network(layers)
    add("--jobs", type=positive, default=4, help="jobs that the network is cut into (default: %(default)s)")
    add("--cut", choices=("estimate", "count", "measured", "predicted"), default="estimate",
        help="what the cut evens out: operations and bytes, the number of layers, measured or predicted times "
        "(default: %(default)s)")  # fmt: skip
    add("--predictor", type=Path, metavar="JSON", help="for --cut predicted: a file of `multi-dnn profile learn`")
    add_target(layers)
    add("--realtime", action="store_true",
        help="hold the processors during each round, where others use them too; takes CAP_SYS_NICE")  # fmt: skip
    add("--longest", type=positive, default=15, metavar="N", help="layers in the table (default: %(default)s)")
    add("--output", type=Path, metavar="DIR", help="write profile.json, layers.csv and pictures there, by model")
    add("--summary", type=Path, metavar="JSON", help="write the sums and wholes of all models to one file")
    layers.set_defaults(run=_layers)
    profile_learning.add_actions(actions)
    profile_fit.add_action(actions)


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default="", help="of a torchvision builder: a file, a name, random (default; times are the same)")
    add("--num-classes", type=natural, default=0, metavar="N", help="of a torchvision builder (default: its own)")
    add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")


def _layers(args: argparse.Namespace) -> int:
    if args.output is not None:
        require("--output", "matplotlib")
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.device import busy_warning, default_path, limits_of, measure_limits
    from multi_dnn_ros.profiling.network import load, profile_network
    from multi_dnn_ros.profiling.realtime_priority import realtime_priority
    from multi_dnn_ros.profiling.report import closing_lines, job_table, kind_table, layer_table, write_profile

    for option, file in (("--output", args.output and args.output / "profile.json"), ("--summary", args.summary)):
        if file is not None:
            check_writable(option, file)
    with open_target(args) as target:
        networks = [
            load(model, weights=args.weights, num_classes=args.num_classes, size=args.size) for model in args.models
        ]
        hold = realtime_priority if args.realtime else nullcontext
        busy = "" if args.realtime else busy_warning(target.device)
        limits = limits_of(
            target, args.limits or default_path(), keep=not busy, measure=lambda of: measure_limits(of, hold=hold)
        )
        profiles = []
        for network in networks:
            with progress_bar(network.name) as progress:
                measured = profile_network(
                    network,
                    target,
                    limits,
                    jobs=args.jobs,
                    cut_by="estimate" if args.cut == "predicted" else args.cut,
                    costs=_predicted(args, target),
                    seed=args.seed,
                    warnings=(busy,) if busy else (),
                    progress=progress,
                    hold=hold,
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


def _predicted(args: argparse.Namespace, target: Target) -> Callable[[Traced], NodeCost] | None:
    """What a cut by prediction goes by; what the predictor was not taught is measured."""
    from multi_dnn_ros.planning.measure import measure
    from multi_dnn_ros.planning.predictor import predicted_costs, read_predictor
    from multi_dnn_ros.profiling.network import measured_costs

    if (args.cut == "predicted") != (args.predictor is not None):
        raise UsageError("--cut predicted and --predictor go together")
    if args.predictor is None:
        return None
    predictor = read_predictor(args.predictor)

    def costs(traced: Traced) -> NodeCost:
        def measured() -> NodeCost:
            return measured_costs(traced, measure(traced, target, jobs=1, seed=args.seed), "the network")

        return predicted_costs(predictor, traced, target, measured=measured)[0]

    return costs


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


def _file_name(model: str) -> str:
    return Path(model).name.replace(":", "_")
