"""``multi-dnn benchmark siblings``: merged sibling operations of a network against separate ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_measured_networks
from multi_dnn_ros.cli.network_by_network import measure_each
from multi_dnn_ros.cli.options import add_device, add_output, add_seed, check_files, write_figures
from multi_dnn_ros.common.errors import CommandError

_DETAILS = """\
Convolutions or linear layers that read the same tensor with the same geometry are merged into one (parameter
`dnn.<dnn>.merge_siblings`). The merged and the separate operations run alternately, one image at a time, and their
outputs must agree. The file is written after each network. Without names the networks are GoogLeNet, InceptionV3,
RetinaNet and the encoder with equal heads.
"""
_EXAMPLES = """\
multi-dnn benchmark siblings torchvision:googlenet --device cpu --rounds 50 --output siblings.json
"""
_NETWORKS = ("torchvision:googlenet", "torchvision:inception_v3", "torchvision:retinanet_resnet50_fpn", "encoder-equal")


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare siblings."""
    parser = add_command(
        scenarios, "siblings", "compare merged operations that read the same tensor with separate ones",
        details=_DETAILS, examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add_measured_networks(parser, "a name of `multi-dnn benchmark branches`")
    add_device(parser)
    add = parser.add_argument
    add("--backends", nargs="+", metavar="NAME",
        help="backends to measure (default: onnxruntime and torchscript on a CPU, cuda_graph on a GPU)")  # fmt: skip
    add("--threads", type=positive, default=1, metavar="N", help="threads on a CPU (default: %(default)s)")
    add_seed(parser, "the weights, the images and the order of runs")
    add_output(parser)


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output")
    from multi_dnn_ros.benchmark.siblings import measure_siblings
    from multi_dnn_ros.pipeline.choices import ConfigError, check_backend, choose_device

    try:
        device = choose_device(args.device, "--device is")
        backends = args.backends or (("cuda_graph",) if device.type == "cuda" else ("onnxruntime", "torchscript"))
        for backend in backends:
            check_backend(backend, device, args.precision, backend_from="--backends", precision_from="--precision")
    except ConfigError as error:
        raise CommandError(str(error)) from None

    def measure(name: str) -> dict[str, Any]:
        return measure_siblings(
            name, backends, device, precision=args.precision, size=args.size, rounds=args.rounds,
            threads=args.threads, seed=args.seed,
        )  # fmt: skip

    def keep(figures: dict[str, Any]) -> None:
        write_figures(args.output, figures, scenario="siblings", device=str(device), rounds=args.rounds)

    figures = measure_each(args.networks or _NETWORKS, measure, keep)
    print(_table(figures["networks"]))
    return 1 if figures["failed"] else 0


def _table(networks: Sequence[dict[str, Any]]) -> str:
    from multi_dnn_ros.common.reporting import table, three_digits

    rows = [
        [
            each["network"],
            f"{sum(each['siblings'])} in {len(each['siblings'])}",
            backend,
            three_digits(figures["ms"]["separate"]["p50"]),
            three_digits(figures["ms"]["merged"]["p50"]),
            f"{figures['merged_over_separate']:.3f}",
        ]
        for each in networks
        for backend, figures in each["backends"].items()
    ]
    return table(["network, one image", "siblings in groups", "backend", "separate, ms", "merged, ms", "ratio"], rows)
