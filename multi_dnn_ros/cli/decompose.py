"""``multi-dnn decompose``: reduce the MACs of a DNN and write it as one file that the node loads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural, positive, positive_fraction
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import (
    add_loading,
    add_model,
    add_target,
    check_output,
    instances,
    origin,
    read_target,
)
from multi_dnn_ros.cli.options import add_device, check_writable
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.compression.rank_policies import RANK_POLICIES, RankRequest

if TYPE_CHECKING:
    from torch import nn

    from multi_dnn_ros.compression.decompose import Outcome
    from multi_dnn_ros.compression.ranks import RankPolicy, Rounding
    from multi_dnn_ros.planning.timing import Target

#: The policy that times layers; the others are in RANK_POLICIES.
_MEASURED = "measured"
_DETAILS = """\
Each plain 2D convolution larger than 1x1, except depthwise ones and those with one input channel, is replaced by up to
three smaller ones, 1x1 -> core -> 1x1 (Tucker-2 decomposition of the channel modes). The result is one file that the
node loads (parameter dnn.<dnn>.model: FILE): a .safetensors file for built-in and torchvision networks, a .pt2 file for
others.

Lower ranks cost accuracy. Recover it with `multi-dnn retrain`, and check the result with `multi-dnn evaluate`.

How the ranks are chosen (--ranks):
{policies}
  measured  the ranks of --base or larger ones, whichever are fastest when each layer is timed on --device with
            --backend; layers that do not become faster stay as they are. The whole network is then timed against the
            original, alone and --instances at once; while it is not faster, the half of the decomposed layers with the
            smallest gains is restored.
""".format(policies="\n".join(f"  {name:<9} {spec.summary}" for name, spec in RANK_POLICIES.items()))
_EXAMPLES = """\
multi-dnn decompose builtin:object --output object.safetensors --ratio 0.5
multi-dnn decompose torchvision:vgg16 --weights vgg.safetensors --output vgg.safetensors --ranks energy --energy 0.9
multi-dnn decompose people.onnx --output people.pt2 --ranks budget --macs-cut 0.4 --report out/people
multi-dnn decompose torchvision:resnet152 --weights random --output r.safetensors --ranks measured --precision fp16
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "decompose", "reduce the MACs of a DNN by Tucker decomposition", details=_DETAILS,
        examples=_EXAMPLES, run=run, libraries=("scipy", "tensorly"),
    )  # fmt: skip
    add_model(parser)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FILE", help="file to write; an existing file is replaced")
    add_loading(parser)
    add = parser.add_argument_group("ranks").add_argument
    add("--ranks", choices=(*RANK_POLICIES, _MEASURED), default="ratio",
        help="how ranks are chosen, see above (default: %(default)s)")  # fmt: skip
    for name, spec in RANK_POLICIES.items():
        if (option := spec.option) is not None:
            add(f"--{option.name.replace('_', '-')}", type=positive_fraction, default=option.default, metavar="X",
                help=f"for {name}: {option.help}, 0..1 (default: %(default)s)")  # fmt: skip
    add("--base", choices=tuple(RANK_POLICIES), default="ratio",
        help="for measured: policy whose ranks are the lower bound of those tried (default: %(default)s)")  # fmt: skip
    add("--alignment", type=positive, default=8, metavar="N",
        help="ranks are multiples of N (default: %(default)s)")  # fmt: skip
    add("--floor", type=positive, default=8, metavar="N", help="smallest rank (default: %(default)s)")
    add("--linear", action="store_true", help="also decompose large fully connected layers, by truncated SVD")
    add("--iterations", type=natural, default=1, metavar="N",
        help="iterations of higher-order orthogonal iteration (default: %(default)s)")  # fmt: skip
    times = parser.add_argument_group("timing (for --ranks measured and --latency)")
    add = times.add_argument
    add("--latency", action="store_true", help="time the original and the result in turn, for the report")
    add_device(times)
    add("--batch", type=positive, default=1, metavar="N", help="images per inference (default: %(default)s)")
    add_target(times)
    add("--timings", type=Path, metavar="JSON",
        help="cache of measured times (default: ~/.cache/multi_dnn_ros/timings.json)")  # fmt: skip
    parser.add_argument("--report", type=Path, metavar="DIR",
                        help="folder to write a report to: JSON, Markdown and plots")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Decompose, write the artifact and the report, and print what changed."""
    if args.report is not None:
        require("--report", "matplotlib")
    import copy

    import torch

    from multi_dnn_ros.compression.decompose import decompose, plan_of
    from multi_dnn_ros.compression.graph_layers import with_layers
    from multi_dnn_ros.compression.layers import list_layers
    from multi_dnn_ros.compression.macs import cost
    from multi_dnn_ros.compression.report import JSON_NAME
    from multi_dnn_ros.graph.balance import balance, random_image
    from multi_dnn_ros.models.artifact import Description, save_artifact, weights_digest
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.sources import load_network, weights_file

    source = load_network(args.model, weights=args.weights, num_classes=args.num_classes, size=args.size)
    if source.description is not None and source.description.plan:
        made_from = source.description.model
        raise UsageError(f"{args.model} is already decomposed; decompose the network it was made from: {made_from}")
    check_output(args.output, args.model, source)
    if args.report is not None:
        check_writable("--report", args.report / JSON_NAME)
    try:
        width, height = source.input_size(args.model, args.size, "--size")
    except ModelError as error:
        raise UsageError(str(error)) from None
    whole = with_layers(source.module)  # in place
    network = source.network
    inputs = (torch.zeros(1, 3, height, width),)
    timed = args.latency or args.ranks == _MEASURED
    if timed and args.weights == "random":
        balance(network, random_image(width, height))
    digest = weights_digest(whole.state_dict())
    before = cost(network, inputs)
    file = weights_file(args.model)
    bytes_before = file.stat().st_size if file is not None else _bytes(whole)
    original = copy.deepcopy(network) if timed else network
    layers = list_layers(network, inputs, linear=args.linear)
    target = read_target(args, args.batch) if timed else None
    policy = _policy(args, before.macs, original, tuple(inputs[0].shape), target)
    with progress_bar("decompose", "step") as progress:
        outcomes = decompose(
            network,
            inputs,
            policy,
            layers=layers,
            iterations=args.iterations,
            may_keep_all=args.ranks == _MEASURED,
            progress=progress,
        )
    latency = _latency(args, policy, original, network, tuple(inputs[0].shape), target)
    provenance = {
        **_provenance(args, target),
        "source": {"model": args.model, "weights": args.weights, "weights_sha256": digest},
        "latency_ms": latency,
    }
    if source.description is not None:
        provenance["source"]["provenance"] = source.description.provenance
    description = Description(
        model=origin(args.model, source),
        num_classes=(source.description.num_classes if source.description else 0) or args.num_classes,
        input_size=(width, height),
        labels=source.labels,
        plan=plan_of(outcomes),
        provenance=provenance,
        **source.own_interface,
    )
    save_artifact(args.output, whole, description)
    return _report(
        args, outcomes, (before, cost(network, inputs)), (bytes_before, args.output.stat().st_size), provenance
    )


def _policy(
    args: argparse.Namespace,
    macs: int,
    original: nn.Module,
    shape: tuple[int, ...],
    target: Target | None,
) -> RankPolicy:
    from multi_dnn_ros.compression.measured import Measured
    from multi_dnn_ros.compression.ranks import Rounding
    from multi_dnn_ros.planning.timing import TimingCache, default_cache

    rounding = Rounding(args.alignment, args.floor)
    if target is None or args.ranks != _MEASURED:
        return _base(args.ranks, args, rounding, macs)
    base = _base(args.base, args, rounding, macs)
    cache = TimingCache(args.timings or default_cache())
    return Measured(base, target, original, shape, rounding, cache, instances(args, target))


def _base(name: str, args: argparse.Namespace, rounding: Rounding, macs: int) -> RankPolicy:
    spec = RANK_POLICIES[name]
    fractions = {} if spec.option is None else {"fraction": getattr(args, spec.option.name)}
    return spec.make(RankRequest(rounding, macs, **fractions))


def _latency(
    args: argparse.Namespace,
    policy: RankPolicy,
    original: nn.Module,
    network: nn.Module,
    shape: tuple[int, ...],
    target: Target | None,
) -> list[dict[str, Any]]:
    """Times of the original and the result from one run: those of the policy when it chose the ranks, or new ones."""
    from multi_dnn_ros.compression.measured import Measured, NetworkTime
    from multi_dnn_ros.planning.timing import compare

    if target is None:
        return []
    if isinstance(policy, Measured):
        chosen = policy.accepted
    else:
        times = compare([original, network], shape, target, (1, instances(args, target)))
        chosen = [NetworkTime(count, before, after, 0) for count, (before, after) in times.items()]
    return [
        {"instances": time.instances, "original_ms": time.original_ms, "decomposed_ms": time.decomposed_ms}
        for time in chosen
    ]


def _provenance(args: argparse.Namespace, target: Target | None) -> dict[str, Any]:
    from multi_dnn_ros.common.reporting import provenance

    chosen = {
        "policy": args.ranks,
        "base": args.base if args.ranks == _MEASURED else None,
        "alignment": args.alignment,
        "floor": args.floor,
        "iterations": args.iterations,
    }
    option = RANK_POLICIES[args.base if args.ranks == _MEASURED else args.ranks].option
    fractions = {} if option is None else {option.name: getattr(args, option.name)}
    return {
        **provenance(),
        "ranks": {**chosen, **fractions},
        "target": target.name() if target is not None else None,
    }


def _report(
    args: argparse.Namespace,
    outcomes: list[Outcome],
    costs: tuple[Any, Any],
    file_bytes: tuple[int, int],
    provenance: dict[str, Any],
) -> int:
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.compression.report import summary, totals, write_report

    latency = provenance["latency_ms"]
    origin = {key: value for key, value in provenance.items() if key != "latency_ms"}
    content = summary(outcomes, costs, file_bytes, latency, model=args.model, **origin)
    print(table(("", "before", "after", "change"), totals(content)))
    done = sum(outcome.plan is not None for outcome in outcomes)
    print(f"{done} of {len(outcomes)} layers decomposed; written to {args.output}")
    if not done:
        print("no decomposition was faster, so the file holds the original network")
    if args.report is not None:
        write_report(args.report, content)
        print(f"report written to {args.report}")
    return 0


def _bytes(network: nn.Module) -> int:
    """Size of the weights as a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
