"""``multi-dnn profile``: the time of every layer, alone and under load, and predictions from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import profile_fit, profile_learning, profile_training
from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands
from multi_dnn_ros.cli.network_arguments import add_loading, add_model
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.cli.profile_target import add_target, open_target
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    from multi_dnn_ros.graph.cut import NodeCost
    from multi_dnn_ros.planning.measure import Traced
    from multi_dnn_ros.planning.predictor import Predictor
    from multi_dnn_ros.planning.profile import Profile
    from multi_dnn_ros.planning.timing import Target

_DETAILS = """\
`layers` times every layer of a network. `contention` and `learn` build a predictor of layer times under load. `fit`
uses measured or predicted times to decide whether the DNNs of a parameter file keep up with given camera rates.
`training` times the layers of a distributed training step.
"""
_EXAMPLES = """\
multi-dnn profile layers builtin:object
multi-dnn profile layers torchvision:resnet50 --jobs 8 --cut measured --output out/profile
multi-dnn profile layers people.onnx --device cuda --backend cuda_graph --precision fp16
multi-dnn profile contention torchvision:resnet18 builtin:lane builtin:object --output samples.csv
multi-dnn profile learn samples.csv --output out/learnt
multi-dnn profile layers torchvision:resnet34 --jobs 8 --cut predicted --predictor out/learnt/predictor.json
multi-dnn profile fit --params-file config/multi_dnn.yaml --rate front=30
multi-dnn profile training torchvision:resnet50 --gpus 2 --batch 64
"""
_LAYERS = """\
Every layer is timed within the running network, with the data and cache contents that it finds there. The command
prints the slowest layers, the kinds of layers, the jobs, and the sum of the layers compared with the whole network.

The bound of a layer is that of the roofline model: the longer of its arithmetic at the device's highest rate and its
bytes at the highest memory bandwidth. Both rates are measured once per device and cached. A layer can be faster than
its bound if its data is in a cache.
"""
_LAYERS_EXAMPLES = """\
multi-dnn profile layers builtin:object
multi-dnn profile layers torchvision:resnet50 --jobs 8 --cut measured --output out/profile
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "profile", "time the layers of DNNs, and predict whether DNNs fit this machine",
        details=_DETAILS, examples=_EXAMPLES,
    )  # fmt: skip
    actions = add_subcommands(parser, "action")
    layers = add_command(
        actions, "layers", "time every layer and job of a network, compared with the device's limits",
        details=_LAYERS, examples=_LAYERS_EXAMPLES, run=_layers,
    )  # fmt: skip
    add_model(layers, several=True, what="networks to profile")
    add_loading(layers, weights="")
    add = layers.add_argument
    add("--jobs", type=positive, default=4, metavar="N",
        help="jobs that the network is cut into (default: %(default)s)")  # fmt: skip
    add("--cut", choices=("estimate", "count", "measured", "predicted"), default="estimate",
        help="what is balanced between the jobs: estimated cost (operations and bytes), the number of layers, "
        "measured or predicted times (default: %(default)s)")  # fmt: skip
    add("--predictor", type=Path, metavar="JSON",
        help="for --cut predicted: predictor.json of `multi-dnn profile learn`")  # fmt: skip
    add_target(layers, threads=None, default="0; with --predictor: as many as it was trained with")
    add("--realtime", action="store_true",
        help="measure with real-time priority, on a CPU that other processes use too; needs CAP_SYS_NICE")  # fmt: skip
    add("--longest", type=positive, default=15, metavar="N", help="number of layers to print (default: %(default)s)")
    add("--output", type=Path, metavar="DIR",
        help="folder for profile.json, layers.csv and plots; one subfolder per model if there are several")  # fmt: skip
    add("--summary", type=Path, metavar="JSON", help="write the totals of all models to this file")
    profile_learning.add_actions(actions)
    profile_fit.add_action(actions)
    profile_training.add_action(actions)


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
    folders = [_file_name(model) for model in args.models]
    if args.output is not None and len(set(folders)) < len(folders):
        shared = next(folder for folder in folders if folders.count(folder) > 1)
        raise UsageError(
            f"--output: several models would be written to {args.output / shared}; profile them separately"
        )
    predictor = _predictor(args)
    with open_target(args, threads=predictor.threads if predictor is not None else 0) as target:
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
                    costs=_predicted(predictor, target, args.seed),
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
        print(f"summary written to {args.summary}")
    return 0


def _predictor(args: argparse.Namespace) -> Predictor | None:
    from multi_dnn_ros.planning.predictor import read_predictor

    if (args.cut == "predicted") != (args.predictor is not None):
        raise UsageError("--cut predicted and --predictor must be given together")
    return None if args.predictor is None else read_predictor(args.predictor)


def _predicted(predictor: Predictor | None, target: Target, seed: int) -> Callable[[Traced], NodeCost] | None:
    """The costs for --cut predicted. Layers that the predictor does not know are measured."""
    from multi_dnn_ros.planning.measure import measure
    from multi_dnn_ros.planning.predictor import predicted_costs
    from multi_dnn_ros.profiling.network import measured_costs

    if predictor is None:
        return None

    def costs(traced: Traced) -> NodeCost:
        def measured() -> NodeCost:
            return measured_costs(traced, measure(traced, target, jobs=1, seed=seed), "the network")

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
