"""``multi-dnn evaluate``: scores, cost and time of DNNs side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.errors import UsageError
from multi_dnn_ros.cli.network_arguments import (
    DATA_HELP,
    add_data,
    add_network,
    add_target,
    instances,
    read_data,
    read_target,
    read_trainee,
)

if TYPE_CHECKING:
    from multi_dnn_ros.training.trainee import Trainee

_DESCRIPTION = f"""\
Score DNNs on data that none of them was trained on, and show what each costs: MACs, parameters, file size and, with
--latency, time on --device, all in the same run. The first MODEL is the one that the others are compared with, an
original for instance, beside what `decompose` and `retrain` made of it.

Classifiers get top-1 and top-5 accuracy, detectors mAP (COCO's), lane networks the F1 of pixels within 3 px at 320 px
wide.

{DATA_HELP}"""
_EXAMPLES = """\
examples:
  multi-dnn evaluate builtin:object object.safetensors better.safetensors --data road --latency --report out/object
  multi-dnn evaluate vgg16.safetensors vgg16_small.safetensors --data cifar10:cifar-10.tar.gz
  multi-dnn evaluate people.onnx --decoder yolo --labels person --data coco:coco
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "evaluate",
        help="scores, MACs and times of DNNs side by side",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="MODEL",
        help="builtin:<name>, torchvision:<builder>, a .safetensors, .pt2 or .onnx file",
    )
    add_data(parser)
    add("--limit", type=positive, metavar="N", help="score the first N images only")
    add("--batch-size", type=positive, default=64, help="images at once while scoring (default: %(default)s)")
    add_network(parser.add_argument_group("networks"))
    times = parser.add_argument_group("timing")
    times.add_argument("--latency", action="store_true", help="time all of them in turns")
    add_target(times)
    parser.add_argument("--report", type=Path, metavar="DIR", help="write JSON, Markdown and a picture there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score, print the table, write the report."""
    from multi_dnn_ros.pipeline import choose_device
    from multi_dnn_ros.reporting import provenance, table
    from multi_dnn_ros.training.comparison import rows_of, write_report

    device = choose_device(args.device)
    networks = [read_trainee(args, model) for model in args.models]
    for network in networks[1:]:
        if network.task != networks[0].task:
            raise UsageError(f"{network.model} is for {network.task}, {networks[0].model} for {networks[0].task}")
    entries = []
    for network in networks:
        entry = _cost(network)
        for data in read_data(args, network):
            entry["scores"][data.name] = _scores(args, network, data, device)
        entries.append(entry)
    if args.latency:
        _add_latency(args, networks, entries)
    content = {**provenance(), "device": str(device), "task": networks[0].task, "networks": entries}
    header, lines = rows_of(content)
    print(table(header, lines))
    if args.report is not None:
        write_report(args.report, content)
        print(f"report in {args.report}")
    return 0


def _cost(network: Trainee) -> dict[str, Any]:
    import torch

    from multi_dnn_ros.compression.macs import cost
    from multi_dnn_ros.models.sources import weights_file

    width, height = network.size
    paid = cost(network.network.eval(), (torch.zeros(1, 3, height, width),))
    file = weights_file(network.model)
    description = network.source.description
    return {
        "model": network.model,
        "input_size": list(network.size),
        "decomposed_layers": len(description.plan) if description is not None else 0,
        "macs": paid.macs,
        "parameters": paid.parameters,
        "file_bytes": file.stat().st_size if file is not None else paid.bytes,
        "scores": {},
        "latency_ms": [],
    }


def _scores(args: argparse.Namespace, network: Trainee, data: Any, device: Any) -> dict[str, float]:
    from multi_dnn_ros.training.data import SomeRows
    from multi_dnn_ros.training.exercise import score_rows
    from multi_dnn_ros.training.retrain import check_labels

    check_labels(network, data)
    rows = data.part("test")
    if args.limit is not None and args.limit < len(rows):
        rows = SomeRows(rows, range(args.limit))
    on_device = network.network.to(device).eval()
    try:
        return {
            "images": len(rows),
            **score_rows(
                on_device, network.task, rows, network.inputs, network.decoder, network.labels, args.batch_size,
                f"{Path(network.model).name} on {data.name}",
            ),
        }  # fmt: skip
    finally:
        network.network.cpu()


def _add_latency(args: argparse.Namespace, networks: list[Trainee], entries: list[dict[str, Any]]) -> None:
    from multi_dnn_ros.compression.timing import compare

    target = read_target(args)
    if len({network.size for network in networks}) > 1:
        raise UsageError("--latency compares networks of one input size; these have several")
    width, height = networks[0].size
    for count in dict.fromkeys((1, instances(args, target))):
        times = compare([network.network for network in networks], (1, 3, height, width), target, instances=count)
        for entry, ms in zip(entries, times, strict=True):
            entry["latency_ms"].append({"instances": count, "ms": ms, "target": target.name()})
