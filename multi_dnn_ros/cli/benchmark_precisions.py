"""``multi-dnn benchmark precisions``: float32, int8 and bfloat16 on one core of this CPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from multi_dnn_ros.cli.arguments import natural, positive
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.common.errors import CommandError

_DESCRIPTION = """\
Processor time of one image on one core for each network, in the precisions that this CPU has, in turns. Accuracy is
measured by `multi-dnn evaluate --served --precision int8`.
"""


def add_precisions(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario precisions."""
    parser = scenarios.add_parser(
        "precisions",
        help="each network alone on one core in float32, int8 and bfloat16",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="as parameter dnn.<dnn>.model; several")
    parser.add_argument(
        "--precisions", nargs="+", choices=("int8", "bf16"), default=("int8", "bf16"),
        help="beside fp32 (default: int8 bf16)",
    )  # fmt: skip
    parser.add_argument(
        "--calibration-images", default="", metavar="DIR", help="for int8 (default: generated road images)"
    )
    parser.add_argument("--rounds", type=positive, default=200, help="(default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of the order (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    parser.set_defaults(run=run_precisions)


def run_precisions(args: argparse.Namespace) -> int:
    """Run it, print a table, write JSON."""
    from multi_dnn_ros.benchmark.precisions import BASELINE, measure_precisions
    from multi_dnn_ros.common.reporting import provenance, table, write_json
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.pipeline.choices import ConfigError

    if args.output is not None:
        check_writable("--output", args.output)
    try:
        networks = measure_precisions(args.models, args.precisions, args.calibration_images, args.rounds, args.seed)
    except (ConfigError, ModelError) as error:
        raise CommandError(str(error)) from None
    names = list(networks[0]["cpu_ms"])
    header = ["alone, one thread", *(f"{name}, CPU ms: median (min)" for name in names), *(
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
    if args.output is not None:
        write_json(args.output, {"scenario": "precisions", **provenance(), "networks": networks})
        print(f"written to {args.output}")
    return 0
