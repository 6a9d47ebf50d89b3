"""``multi-dnn benchmark branches``: independent branches of a network, run in parallel."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_measured_networks
from multi_dnn_ros.cli.network_by_network import measure_each
from multi_dnn_ros.cli.options import add_device, add_output, add_plot, add_seed, check_files, write_figures
from multi_dnn_ros.common.errors import CommandError

_DETAILS = """\
One image, or batch of --images, at a time. On a GPU every condition is one captured graph; on a CPU the streams are
threads that share the cores. The outputs of all conditions must agree with the serial ones.

Without names the networks are InceptionV3, GoogLeNet, RetinaNet, SSD300, DeepLabV3 and four of this package:
encoder-windows and tracker-windows have attention heads with windows of 1, 2, 4 and 8 features, encoder-equal and
tracker-equal have equal heads, which are also measured merged into one product.

With --inductor, compiling takes some minutes for each network and number of streams.

The files are written after each network, so that an interrupted run keeps what it has measured.
"""
_EXAMPLES = """\
multi-dnn benchmark branches --precision fp16 --output branches.json --plot branches.png
multi-dnn benchmark branches torchvision:vgg16 --images 8 --streams --precision fp16 --inductor
multi-dnn benchmark branches torchvision:googlenet --device cpu --size 96x96 --rounds 20
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare branches."""
    parser = add_command(
        scenarios, "branches", "compare parallel branches of a network with serial execution",
        details=_DETAILS, examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add_measured_networks(parser, "a name from above")
    add_device(parser)
    add = parser.add_argument
    add("--streams", nargs="*", type=int, choices=(2, 4, 8), default=(2, 4, 8),
        help="numbers of streams to compare with one; without a number: none, for networks without branches "
        "(default: 2 4 8)")  # fmt: skip
    add("--images", type=positive, default=1, metavar="N", help="images in a batch (default: 1)")
    add("--siblings", action="store_true",
        help="also measure with merged siblings (parameter dnn.<dnn>.merge_siblings: always), on a GPU")  # fmt: skip
    add(
        "--inductor", action="store_true", help="also measure Inductor's graphs on one and on several streams, on a GPU"
    )
    add_seed(parser, "the weights, the images and the order of runs")
    add_output(parser)
    add_plot(parser, "time of each condition relative to serial")


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output", "plot")
    from multi_dnn_ros.benchmark.branch_networks import SIZES
    from multi_dnn_ros.benchmark.branches import measure_branches
    from multi_dnn_ros.benchmark.branches_plot import plot_branches
    from multi_dnn_ros.pipeline.choices import ConfigError, check_backend, choose_device

    try:
        device = choose_device(args.device, "--device is")
        backend = "cuda_graph" if device.type == "cuda" else "eager"
        check_backend(backend, device, args.precision, precision_from="--precision")
    except ConfigError as error:
        raise CommandError(str(error)) from None

    def measure(name: str) -> dict[str, Any]:
        figures = measure_branches(
            name, device, streams=args.streams, precision=args.precision, size=args.size, rounds=args.rounds,
            seed=args.seed, images=args.images, inductor=args.inductor, siblings=args.siblings,
        )  # fmt: skip
        print(_table([figures]), flush=True)
        return figures

    def keep(figures: dict[str, Any]) -> None:
        write_figures(
            args.output, figures, scenario="branches", device=str(device), streams=list(args.streams),
            rounds=args.rounds,
        )  # fmt: skip
        if args.plot is not None:
            plot_branches(figures["networks"], args.plot)

    figures = measure_each(args.networks or SIZES, measure, keep)
    print(_table(figures["networks"]))
    if args.plot is not None:
        print(f"written to {args.plot}")
    return 1 if figures["failed"] else 0


def _table(networks: Sequence[Mapping[str, Any]]) -> str:
    from multi_dnn_ros.common.reporting import table, three_digits

    conditions = list(dict.fromkeys(name for each in networks for name in each["over_serial"]))
    rows = []
    for each in networks:
        cells = [
            f"{three_digits(each['ms'][name]['p50'])} ({each['over_serial'][name]:.2f})"
            if name in each["over_serial"]
            else "-"
            for name in conditions
        ]
        rates = each.get("frames_per_s", {})
        fastest = max(rates, key=rates.__getitem__) if rates else ""
        speed = f"{rates['serial']:.0f}, {fastest}: {rates[fastest]:.0f}" if rates else "-"
        critical_path = f"{each['critical_path_over_serial']:.2f}"
        rows.append([each["network"], three_digits(each["ms"]["serial"]["p50"]), *cells, critical_path, speed])
    header = ["network", "serial, ms", *(f"{name}, ms (/ serial)" for name in conditions)]
    return table([*header, "critical path / serial (estimated)", "frames per s"], rows)
