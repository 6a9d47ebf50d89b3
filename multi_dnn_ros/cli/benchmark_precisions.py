"""``multi-dnn benchmark precisions``: float32, int8 and bfloat16 on one core of this CPU."""

from __future__ import annotations

import argparse
from typing import Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import MODEL_HELP, add_calibration
from multi_dnn_ros.cli.network_by_network import measure_each
from multi_dnn_ros.cli.options import add_output, add_seed, check_files, write_figures
from multi_dnn_ros.common.errors import CommandError

_DETAILS = """\
The precisions run alternately, one image at a time. CPU time is reported as a ratio to float32. The file is written
after each network. To measure the accuracy at a precision, use `multi-dnn evaluate --served --precision int8`.
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare precisions."""
    parser = add_command(
        scenarios, "precisions", "measure the CPU time of networks in float32, int8 and bfloat16 on one core",
        details=_DETAILS, examples="multi-dnn benchmark precisions builtin:object torchvision:resnet50", run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help=f"network to measure: {MODEL_HELP}")
    add("--precisions", nargs="+", choices=("int8", "bf16"), default=("int8", "bf16"),
        help="precisions to compare with float32 (default: int8 bf16)")  # fmt: skip
    add_calibration(parser)
    add("--rounds", type=positive, default=200, metavar="N", help="timed runs per precision (default: %(default)s)")
    add_seed(parser, "the order of runs")
    add_output(parser)


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output")
    import torch

    from multi_dnn_ros.benchmark.precisions import BASELINE, measure_precisions
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.pipeline.choices import ConfigError, check_backend

    try:
        for precision in args.precisions:
            check_backend("auto", torch.device("cpu"), precision, precision_from="--precisions")
    except ConfigError as error:
        raise CommandError(str(error)) from None

    def measure(model: str) -> dict[str, Any]:
        return measure_precisions(model, args.precisions, args.calibration_images, args.rounds, args.seed)

    figures = measure_each(
        args.models, measure, lambda figures: write_figures(args.output, figures, scenario="precisions")
    )
    networks = figures["networks"]
    names = list(networks[0]["cpu_ms"])
    header = ["network, one thread", *(f"{name}, CPU ms: median (min)" for name in names), *(
        f"{name} / {BASELINE}" for name in names[1:]
    )]  # fmt: skip
    rows = [
        [
            each["model"],
            *(f"{each['cpu_ms'][name]['p50']:.2f} ({each['cpu_ms'][name]['min']:.2f})" for name in names),
            *(f"{each['over_fp32'][name]['medians']:.3f}" for name in names[1:]),
        ]
        for each in networks
    ]
    print(table(header, rows))
    for each in networks:
        for name, texts in each["warnings"].items():
            for text in texts:
                print(f"{each['model']}, {name}: {text}")
    return 1 if figures["failed"] else 0
