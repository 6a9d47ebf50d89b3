"""``multi-dnn decompose``: reduce the MACs of a DNN and write it as one file that the node loads."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import positive, positive_fraction
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import (
    add_loading,
    add_model,
    add_target,
    calibration_inputs,
    check_files,
    check_output,
    instances,
    origin,
    read_target,
)
from multi_dnn_ros.cli.options import add_device, check_writable
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.training.data_kinds import help_text

if TYPE_CHECKING:
    import torch
    from torch import nn

    from multi_dnn_ros.compression.ranks import RankPolicy
    from multi_dnn_ros.models.dnn import Source
    from multi_dnn_ros.planning.timing import Target

#: Images of --data that are used: more take longer and change little.
_MAX_IMAGES = 256
_DETAILS = f"""\
Each plain 2D convolution larger than 1x1, except depthwise ones and those with one input channel, is replaced by up to
three smaller ones, 1x1 -> core -> 1x1 (Tucker-2 decomposition of the channel modes). The result is one file that the
node loads (parameter dnn.<dnn>.model: FILE): a .safetensors file for built-in and torchvision networks, a .pt2 file for
others.

With --data, the weights of the new layers minimize the error of each layer's output on images; otherwise that of its
weights. Images keep much more of the accuracy before retraining. Recover the rest with `multi-dnn retrain`, and check
it before and after with `multi-dnn evaluate`.

How the ranks are chosen (--ranks):
  ratio     the same fraction of the channels in every layer (--ratio)
  budget    a given reduction of the network's MACs (--macs-cut), distributed so that the error is smallest
  measured  the ranks of --ratio or larger ones, whichever are fastest when each layer is timed on --device with
            --backend; layers that do not become faster stay as they are. The whole network is then timed against the
            original, alone and several at once; while it is not faster, the half of the decomposed layers with the
            smallest gains is restored.

Images (--data): a folder of images; `road`, generated road images of this package; or the training part of a data set:
{help_text()}
"""
_EXAMPLES = """\
multi-dnn decompose builtin:object --output object.safetensors --ranks budget --macs-cut 0.4 --data road
multi-dnn decompose torchvision:vgg16 --weights vgg.safetensors --output vgg_small.safetensors --data classes:photos
multi-dnn decompose people.onnx --output people.pt2 --ranks budget --macs-cut 0.4 --data frames --report out/people
multi-dnn decompose torchvision:resnet152 --weights random --output r.safetensors --ranks measured --precision fp16
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "decompose", "reduce the MACs of a DNN by Tucker decomposition", details=_DETAILS,
        examples=_EXAMPLES, run=run, libraries=("tensorly",),
    )  # fmt: skip
    add_model(parser)
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FILE", help="file to write; an existing file is replaced")
    add("--data", default="", metavar="DATA",
        help="images on which the error of the outputs is minimized, see above (default: none, the error of the "
        "weights is minimized)")  # fmt: skip
    add_loading(parser)
    add = parser.add_argument_group("ranks").add_argument
    add("--ranks", choices=("ratio", "budget", "measured"), default="ratio",
        help="how ranks are chosen, see above (default: %(default)s)")  # fmt: skip
    add("--ratio", type=positive_fraction, default=0.5, metavar="X",
        help="for ratio and measured: rank divided by channels, 0..1 (default: %(default)s)")  # fmt: skip
    add("--macs-cut", type=positive_fraction, default=0.4, metavar="X",
        help="for budget: fraction of the MACs to remove, 0..1 (default: %(default)s)")  # fmt: skip
    add("--alignment", type=positive, default=8, metavar="N",
        help="ranks are multiples of N (default: %(default)s)")  # fmt: skip
    add("--floor", type=positive, default=8, metavar="N", help="smallest rank (default: %(default)s)")
    add("--linear", action="store_true", help="also decompose large fully connected layers, by truncated SVD")
    times = parser.add_argument_group("timing (for --ranks measured and --latency)")
    add = times.add_argument
    add("--latency", action="store_true", help="time the original and the result in turn, for the report")
    add_device(times)
    add("--batch", type=positive, default=1, metavar="N", help="images per inference (default: %(default)s)")
    add_target(times)
    parser.add_argument("--report", type=Path, metavar="DIR",
                        help="folder to write report.json to: what was done to each layer")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Decompose, write the artifact and the report, and print what changed."""
    labelled = args.data == "road" or ":" in args.data
    check_files(args.weights, [args.data] if labelled else [], args.model)
    if args.data and not labelled and not Path(args.data).is_dir():
        raise CommandError(f"--data is '{args.data}': there is no such folder")
    import copy

    import torch

    from multi_dnn_ros.common.reporting import provenance, table, write_json
    from multi_dnn_ros.compression.decompose import change, decompose, plan_of
    from multi_dnn_ros.compression.graph_layers import with_layers
    from multi_dnn_ros.compression.macs import cost
    from multi_dnn_ros.graph.balance import balance, random_image
    from multi_dnn_ros.models.artifact import Description, save_artifact, weights_digest
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.sources import load_network, weights_file

    source = load_network(args.model, weights=args.weights, num_classes=args.num_classes, size=args.size)
    if source.description is not None and source.description.plan:
        made_from = source.description.model
        raise UsageError(f"{args.model} is already decomposed; decompose the network it was made from: {made_from}")
    check_output(args.output, args.model, source)
    report_file = args.report / "report.json" if args.report is not None else None
    if report_file is not None:
        check_writable("--report", report_file)
    try:
        width, height = source.input_size(args.model, args.size, "--size")
    except ModelError as error:
        raise UsageError(str(error)) from None
    images = _images(args, source) if args.data else []
    whole = with_layers(source.module)  # in place
    network = source.network
    inputs = (torch.zeros(1, 3, height, width),)
    timed = args.latency or args.ranks == "measured"
    if timed and args.weights == "random":
        balance(network, random_image(width, height))
    digest = weights_digest(whole.state_dict())
    before = cost(network, inputs)
    file = weights_file(args.model)
    bytes_before = file.stat().st_size if file is not None else before.bytes
    original = copy.deepcopy(network) if timed else network
    target = read_target(args, args.batch) if timed else None
    policy = _policy(args, before.macs, original, tuple(inputs[0].shape), target)
    with progress_bar("decompose", "step") as progress:
        outcomes = decompose(
            network, inputs, policy, linear=args.linear, images=images, may_keep_all=args.ranks == "measured",
            progress=progress,
        )  # fmt: skip
    chosen = {name: getattr(args, name) for name in ("ratio", "macs_cut", "alignment", "floor")}
    origin_of: dict[str, Any] = {
        **provenance(),
        "ranks": {"policy": args.ranks, **chosen},
        "norm": "outputs" if images else "weights",
        "images": {"data": args.data, "count": len(images)},
        "target": target.name() if target is not None else None,
        "source": {"model": args.model, "weights": args.weights, "weights_sha256": digest},
    }
    if source.description is not None:
        origin_of["source"]["provenance"] = source.description.provenance
    latency = _latency(args, policy, original, network, tuple(inputs[0].shape), target)
    description = Description(
        model=origin(args.model, source),
        num_classes=(source.description.num_classes if source.description else 0) or args.num_classes,
        input_size=(width, height),
        labels=source.labels,
        plan=plan_of(outcomes),
        provenance={**origin_of, "latency_ms": latency},
        **source.own_interface,
    )
    save_artifact(args.output, whole, description)
    after = cost(network, inputs)
    content = {
        "model": args.model,
        **origin_of,
        "macs": change(before.macs, after.macs),
        "parameters": change(before.parameters, after.parameters),
        "file_bytes": change(bytes_before, args.output.stat().st_size),
        "latency_ms": latency,
        "layers": [outcome.as_json() for outcome in outcomes],
    }
    print(table(("", "before", "after", "change"), _totals(content)))
    done = sum(outcome.plan is not None for outcome in outcomes)
    print(f"{done} of {len(outcomes)} layers decomposed; written to {args.output}")
    if not done:
        print("no decomposition was faster, so the file holds the original network")
    if report_file is not None:
        write_json(report_file, content)
        print(f"report written to {report_file}")
    return 0


def _totals(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """(quantity, before, after, change) of the network, as text."""
    units = (("macs", "MACs", 1e9, "G"), ("parameters", "parameters", 1e6, "M"), ("file_bytes", "file", 1e6, "MB"))
    pairs = [(name, content[key]["before"] / scale, content[key]["after"] / scale, unit)
             for key, name, scale, unit in units]  # fmt: skip
    for entry in content["latency_ms"]:
        name = "latency, alone" if entry["instances"] == 1 else f"latency, {entry['instances']} at once"
        pairs.append((name, entry["original_ms"], entry["decomposed_ms"], "ms"))
    return [
        (name, f"{before:.3f} {unit}", f"{after:.3f} {unit}", f"{after / before - 1:+.1%}")
        for name, before, after, unit in pairs
    ]


def _images(args: argparse.Namespace, source: Source) -> list[tuple[torch.Tensor, ...]]:
    """At most _MAX_IMAGES images of --data, each as inputs of one inference."""
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.training.data import DataRequest, evenly_spaced, open_data
    from multi_dnn_ros.training.trainable import make_trainable

    generated = args.data.partition(":")[0] == "road"
    labelled = ":" in args.data and not generated
    try:
        network = make_trainable(source, args.model, size=args.size)
    except ModelError:
        if labelled:
            raise
        # Without labels, nothing is decoded: the source says how an image becomes an input.
        network = make_trainable(source, args.model, size=args.size, decoder="classification")
    if not labelled:
        return calibration_inputs(network, "" if generated else args.data)
    rows = open_data(args.data, DataRequest(network.task, network.framing, network.labels)).part("train")
    return [network.input_of(rows[index]["image"]) for index in evenly_spaced(_MAX_IMAGES, len(rows))]


def _policy(
    args: argparse.Namespace, macs: int, original: nn.Module, shape: tuple[int, ...], target: Target | None
) -> RankPolicy:
    from multi_dnn_ros.compression.measured import Measured
    from multi_dnn_ros.compression.ranks import Budget, Ratio, Rounding

    rounding = Rounding(args.alignment, args.floor)
    if args.ranks == "budget":
        return Budget(args.macs_cut, macs, rounding)
    ratio = Ratio(args.ratio, rounding)
    if args.ranks == "ratio":
        return ratio
    assert target is not None
    return Measured(ratio, target, original, shape, rounding, instances(args, target))


def _latency(
    args: argparse.Namespace, policy: RankPolicy, original: nn.Module, network: nn.Module, shape: tuple[int, ...],
    target: Target | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Times of the original and the result from one run: those of the policy when it chose the ranks, or new ones."""
    from multi_dnn_ros.compression.measured import Measured
    from multi_dnn_ros.planning.timing import compare

    if target is None:
        return []
    times: Mapping[int, Sequence[float]] = (
        policy.accepted if isinstance(policy, Measured)
        else compare([original, network], shape, target, (1, instances(args, target)))
    )  # fmt: skip
    return [
        {"instances": count, "original_ms": before, "decomposed_ms": after} for count, (before, after) in times.items()
    ]
