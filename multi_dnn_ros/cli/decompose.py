"""``multi-dnn decompose``: reduce the MACs of a DNN and write it as one file that the node loads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import networks
from multi_dnn_ros.cli.figures import progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.options import LOADING, Commands, add_command, add_options, positive, positive_fraction
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.training.data_kinds import help_text

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.models.dnn import Source

#: Images of --data that are used: more take longer and change little.
_MAX_IMAGES = 256
_TEXT = f"""\
Reduce the MACs of a DNN by Tucker decomposition.

Each 2D convolution larger than 1x1, except depthwise ones, is replaced by up to three smaller ones, 1x1 -> core -> 1x1
(Tucker-2 decomposition of the channel modes). The result is one file that the node loads (dnn.<dnn>.model: FILE):
.safetensors for built-in and torchvision networks, .pt2 for others.

With --data, the weights of the new layers minimize the error of each layer's output on images; otherwise that of its
weights. Images keep much more of the accuracy. Recover the rest with `retrain`, and compare with `evaluate`.

How the ranks are chosen (--ranks):
  ratio     the same fraction of the channels in every layer (--ratio)
  budget    a given reduction of the network's MACs (--macs-cut), distributed so that the error is smallest
  measured  the ranks of --ratio or larger ones, whichever are fastest when each layer is timed on --device with
            --backend; layers are restored until the whole network is faster than the original

Images (--data): a folder of images; `road`, generated road images of this package; or the training part of a data set:
{help_text()}

examples:
  multi-dnn decompose builtin:object --output object.safetensors --ranks budget --macs-cut 0.4 --data road
  multi-dnn decompose people.onnx --output people.pt2 --ranks budget --macs-cut 0.4 --data frames --report out/people
  multi-dnn decompose torchvision:resnet152 --weights random --output r.safetensors --ranks measured --precision fp16
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "decompose", _TEXT, run, libraries=("tensorly",))
    add = parser.add_argument
    add_options(parser, "model")
    add_options(parser, "--output", metavar="FILE", required=True, help="file to write; an existing one is replaced")
    add("--data", default="", metavar="DATA",
        help="images on which the error of the outputs is minimized, see above (default: none)")  # fmt: skip
    add_options(parser, *LOADING, "--report")
    add("--ranks", choices=("ratio", "budget", "measured"), default="ratio",
        help="how ranks are chosen, see above (default: %(default)s)")  # fmt: skip
    add("--ratio", type=positive_fraction, default=0.5, metavar="X",
        help="for ratio and measured: rank divided by channels, 0..1 (default: %(default)s)")  # fmt: skip
    add("--macs-cut", type=positive_fraction, default=0.4, metavar="X",
        help="for budget: fraction of the MACs to remove, 0..1 (default: %(default)s)")  # fmt: skip
    add("--alignment", type=positive, default=8, metavar="N",
        help="ranks are multiples of N, and at least N (default: %(default)s)")  # fmt: skip
    add("--linear", action="store_true", help="also decompose large fully connected layers, by truncated SVD")
    add_options(parser.add_argument_group("timing (for --ranks measured)"), "--device", "--backend", "--precision",
                "--sms")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Decompose, write the artifact and the report, and print what changed."""
    labelled = args.data == "road" or ":" in args.data
    networks.check_files(args, [args.data] if labelled else [])
    if args.data and not labelled and not Path(args.data).is_dir():
        raise CommandError(f"--data is '{args.data}': there is no such folder")
    import copy

    import torch

    from multi_dnn_ros.compression.decompose import change, decompose, plan_of
    from multi_dnn_ros.compression.graph_layers import with_layers
    from multi_dnn_ros.compression.macs import cost
    from multi_dnn_ros.compression.measured import Measured
    from multi_dnn_ros.compression.ranks import Budget, RankPolicy, Ratio, Rounding
    from multi_dnn_ros.models.artifact import weights_digest
    from multi_dnn_ros.models.balance import balance, random_image
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.sources import load_network, weights_file

    source = load_network(args.model, weights=args.weights, num_classes=args.num_classes, size=args.size)
    if source.description is not None and source.description.plan:
        made_from = source.description.model
        raise UsageError(f"{args.model} is already decomposed; decompose the network it was made from: {made_from}")
    networks.check_suffix(args.output, args.model, source)
    try:
        width, height = source.input_size(args.model, args.size, "--size")
    except ModelError as error:
        raise UsageError(str(error)) from None
    images = _images(args, source) if args.data else []
    whole = with_layers(source.module)  # in place
    network, inputs = source.network, (torch.zeros(1, 3, height, width),)
    timed = args.ranks == "measured"
    if timed and args.weights == "random":
        balance(network, random_image(width, height))
    digest = weights_digest(whole.state_dict())
    before, file = cost(network, inputs), weights_file(args.model)
    bytes_before = file.stat().st_size if file is not None else before.bytes
    target = networks.read_target(args) if timed else None
    rounding = Rounding(args.alignment, args.alignment)
    policy: RankPolicy = Ratio(args.ratio, rounding)
    if args.ranks == "budget":
        policy = Budget(args.macs_cut, before.macs, rounding)
    elif target is not None:
        original, count = copy.deepcopy(network), networks.copies(target)[1]
        policy = Measured(policy, target, original, tuple(inputs[0].shape), rounding, count)
    with progress_bar("decompose", "step") as progress:
        outcomes = decompose(
            network, inputs, policy, linear=args.linear, images=images, may_keep_all=timed, progress=progress
        )
    after = cost(network, inputs)
    accepted = policy.accepted.items() if isinstance(policy, Measured) else ()
    about: dict[str, Any] = {
        "ranks": {"policy": args.ranks, "ratio": args.ratio, "macs_cut": args.macs_cut, "alignment": args.alignment},
        "norm": "outputs" if images else "weights",
        "images": {"data": args.data, "count": len(images)},
        "target": target.name() if target is not None else None,
        "source": {"weights_sha256": digest},
        "latency_ms": [
            {"instances": count, "original_ms": first, "decomposed_ms": second} for count, (first, second) in accepted
        ],
    }
    networks.write_artifact(args, source, whole, (width, height), source.labels, plan_of(outcomes), about)
    changes = {
        "macs": change(before.macs, after.macs),
        "parameters": change(before.parameters, after.parameters),
        "file_bytes": change(bytes_before, args.output.stat().st_size),
    }
    shown = [(name, changes[key]["before"] / unit, changes[key]["after"] / unit) for name, key, unit in (
        ("MACs, G", "macs", 1e9), ("parameters, M", "parameters", 1e6), ("file, MB", "file_bytes", 1e6))
    ] + [(f"latency of {count} at once, ms", *times) for count, times in accepted]  # fmt: skip
    print(rows_table([
        {"": name, "before": first, "after": second, "change": f"{second / first - 1:+.1%}"}
        for name, first, second in shown
    ]))  # fmt: skip
    done = sum(outcome.plan is not None for outcome in outcomes)
    print(f"{done} of {len(outcomes)} layers decomposed; written to {args.output}")
    if not done:
        print("no decomposition was faster, so the file holds the original network")
    content = {"model": args.model, **about, **changes, "layers": [outcome.as_json() for outcome in outcomes]}
    write_figures(args.report and args.report / "report.json", content)
    return 0


def _images(args: argparse.Namespace, source: Source) -> list[tuple[torch.Tensor, ...]]:
    """At most _MAX_IMAGES images of --data, each as inputs of one inference."""
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.training.data import evenly_spaced, open_data
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
        return networks.calibration_inputs(network, "" if generated else args.data)
    rows = open_data(args.data, network.task, network.framing, network.labels).part("train")
    return [network.input_of(rows[index]["image"]) for index in evenly_spaced(_MAX_IMAGES, len(rows))]
