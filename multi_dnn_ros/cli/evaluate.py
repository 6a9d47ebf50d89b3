"""``multi-dnn evaluate``: scores, cost and latency of DNNs side by side."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import evaluate_configured
from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.configured_dnn import add_configured_dnn, check_configured
from multi_dnn_ros.cli.network_arguments import (
    DATA_HELP,
    add_calibration,
    add_data,
    add_model,
    add_network,
    add_target,
    calibration_inputs,
    check_weights,
    instances,
    read_data,
    read_target,
    read_trainable,
)
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    import torch
    from torch import nn

    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.data import Data
    from multi_dnn_ros.training.operating_points import OperatingPoint
    from multi_dnn_ros.training.samples import Rows
    from multi_dnn_ros.training.trainable import Trainable

_DETAILS = f"""\
Each DNN is scored on the test part of the data, and its cost is shown: MACs, parameters, file size and, with --latency,
the time per inference on --device. The first MODEL is the baseline of the comparison, for example the original network
before `decompose` and `retrain`.

Classifiers get top-1 and top-5 accuracy, detectors COCO's mAP, lane networks the F1 score of lane pixels within 3
pixels at a width of 320. Scores are those of the network in float32; --served adds a row with the scores at the
precision and backend that the node uses.

--params-file scores each result of a DNN with its configured crop and tiles, on whole images. Each result is compared
with the ground truth of its kind, in pixels of the image. Results of a kind without a score are listed with the reason.

{DATA_HELP}"""
_EXAMPLES = """\
multi-dnn evaluate builtin:object object.safetensors better.safetensors --data road --latency --report out/object
multi-dnn evaluate vgg16.safetensors vgg16_small.safetensors --data cifar10:cifar-10.tar.gz
multi-dnn evaluate builtin:object --data road --served --precision fp16 --device cuda
multi-dnn evaluate builtin:object --data road --served --precision int8 --device cpu --calibration-images my_frames
multi-dnn evaluate people.onnx --labels person --data coco:coco
multi-dnn evaluate builtin:pedestrian --data coco:my_roads --thresholds
multi-dnn evaluate --params-file my_robot.yaml --dnn road --data coco:my_roads --data lanes:my_lanes
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "evaluate", "compare the scores, operations and latency of DNNs", details=_DETAILS,
        examples=_EXAMPLES, run=run, libraries=("pycocotools",),
    )  # fmt: skip
    add_model(parser, several=True, optional=True, what="networks to compare")
    add_configured_dnn(parser)
    add_data(parser)
    add = parser.add_argument
    add(
        "--limit",
        type=positive,
        metavar="N",
        help="score only N images, evenly spaced over the test part (default: all)",
    )
    add("--thresholds", action="store_true",
        help="detectors and lane networks: also list precision and recall, and false boxes per image, at score "
        "thresholds from 0.05 to 0.95, with the node's NMS; images without any object are allowed")  # fmt: skip
    add("--batch-size", type=positive, default=64, metavar="N",
        help="images per inference while scoring (default: %(default)s)")  # fmt: skip
    add_network(parser.add_argument_group("network"))
    serving = parser.add_argument_group("serving and timing")
    add = serving.add_argument
    add("--served", action="store_true",
        help="add a row per network with its scores as the node serves it: batch norms folded, one image per "
        "inference, with --backend at --precision on --device")  # fmt: skip
    add("--latency", action="store_true", help="time the networks in turn")
    add_target(serving, int8=True)
    add_calibration(serving)
    parser.add_argument("--report", type=Path, metavar="DIR",
                        help="folder to write a report to: JSON, Markdown and a plot; with --params-file only "
                        "JSON")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Score the networks, print the table and write the report."""
    check_configured(args, args.models, evaluate_configured.MODEL_OPTIONS)
    if args.params_file is not None:
        return evaluate_configured.evaluate_configured(args)
    if args.report is not None:
        require("--report", "matplotlib")
    from multi_dnn_ros.common.reporting import provenance, table
    from multi_dnn_ros.pipeline.choices import choose_device
    from multi_dnn_ros.training.comparison import JSON_NAME, rows_of, scored_images, threshold_tables, write_report

    check_weights(args, args.models)
    if args.report is not None:
        check_writable("--report", args.report / JSON_NAME)
    device = choose_device(args.device, "--device is")
    networks = [read_trainable(args, model) for model in args.models]
    if args.thresholds and networks[0].task == "classes":
        raise UsageError(f"--thresholds is for detectors and lane networks; {networks[0].model} is a classifier")
    for network in networks[1:]:
        if network.task != networks[0].task:
            raise UsageError(
                f"{network.model} is for {network.task}, {networks[0].model} for {networks[0].task}; "
                "expected networks of one task"
            )
    targets = [_target(args, network) for network in networks] if args.served or args.latency else []
    entries: list[list[dict[str, Any]]] = []

    def write() -> dict[str, Any]:
        """Write the report of the networks so far, and return its content."""
        rows = [row for group in entries for row in group]
        content = {**provenance(), "device": str(device), "task": networks[0].task, "networks": rows}
        if args.report is not None:
            write_report(args.report, content)
        return content

    for network, target in zip_longest(networks, targets):
        entries.append(_scored(args, network, device, target if args.served else None))
        content = write()
    if args.latency:
        _add_latency(args, targets[0], networks, entries)
        content = write()
    header, lines = rows_of(content)
    print(table(header, lines))
    print(scored_images(content))
    for title, text in threshold_tables(content):
        print(f"\n{title}\n{text}")
    if args.report is not None:
        print(f"report written to {args.report}")
    return 0


def _target(args: argparse.Namespace, network: Trainable) -> Target:
    target = read_target(args, calibration=partial(calibration_inputs, network, args.calibration_images))
    target.make_backend()  # raises for a precision that the device does not have, before minutes of scoring
    return target


def _scored(
    args: argparse.Namespace, network: Trainable, device: torch.device, target: Target | None
) -> list[dict[str, Any]]:
    """The rows of a network: in float32; with a target, also as the node serves it."""
    from multi_dnn_ros.training.comparison import label
    from multi_dnn_ros.training.served_network import Served

    entries, modules = [_cost(network)], [network.network]
    if target is not None:
        chain = Served(network.network, network.size, target)  # while the network is on the CPU
        served: dict[str, Any] = {"backend": target.backend, "precision": target.precision, "target": target.name()}
        served["warnings"] = chain.warnings
        entries.append({**entries[0], "served": served, "scores": {}, "latency_ms": []})
        modules.append(chain)
    network.network.to(device)
    try:
        for data in read_data(args, network):
            for entry, module in zip(entries, modules, strict=True):
                name = label(entry, short=True)
                entry["scores"][data.name] = _scores(args, network, data, module, name)
                if args.thresholds:
                    points = _points(args, network, data, module, name)
                    entry.setdefault("operating_points", {})[data.name] = [point.as_json() for point in points]
    finally:
        network.network.cpu()
    return entries


def _cost(network: Trainable) -> dict[str, Any]:
    import torch

    from multi_dnn_ros.compression.macs import cost
    from multi_dnn_ros.models.sources import weights_file

    width, height = network.size
    network_cost = cost(network.network, (torch.zeros(1, 3, height, width),))
    file = weights_file(network.model)
    description = network.source.description
    return {
        "model": network.model,
        "served": None,
        "input_size": list(network.size),
        "decomposed_layers": len(description.plan) if description is not None else 0,
        "macs": network_cost.macs,
        "parameters": network_cost.parameters,
        "file_bytes": file.stat().st_size if file is not None else network_cost.bytes,
        "scores": {},
        "latency_ms": [],
    }


def _scores(args: argparse.Namespace, network: Trainable, data: Data, module: nn.Module, name: str) -> dict[str, float]:
    from multi_dnn_ros.training.metrics import NoTruth
    from multi_dnn_ros.training.retrain import check_labels
    from multi_dnn_ros.training.scoring import score_rows
    from multi_dnn_ros.vision.results import OutputError

    check_labels(network, data)
    rows = _rows(args, data)
    try:
        scores = score_rows(
            module, network.task, rows, network.inputs, network.decoder, network.labels, args.batch_size,
            f"{name} on {data.name}", network.kind,
        )  # fmt: skip
    except OutputError as error:
        raise CommandError(f"{name} cannot be scored: {error}") from None
    except NoTruth as error:
        if not args.thresholds:
            raise CommandError(f"{data.name}: {error}; --thresholds counts false detections there") from None
        scores = {}
    return {"images": len(rows), **scores}


def _points(
    args: argparse.Namespace, network: Trainable, data: Data, module: nn.Module, name: str
) -> list[OperatingPoint]:
    from multi_dnn_ros.training.operating_points import operating_points

    assert network.decoder is not None
    return operating_points(
        module,
        _rows(args, data),
        network.inputs,
        network.decoder,
        args.batch_size,
        f"{name} on {data.name}, thresholds",
    )


def _rows(args: argparse.Namespace, data: Data) -> Rows:
    """The test part of the data, or --limit images of it."""
    from multi_dnn_ros.training.checks import report_unusable
    from multi_dnn_ros.training.data import evenly_spaced
    from multi_dnn_ros.training.samples import SomeRows

    rows = data.part("test")
    report_unusable(data.name, rows)
    if args.limit is None or args.limit >= len(rows):
        return rows
    return SomeRows(rows, evenly_spaced(args.limit, len(rows)))


def _add_latency(
    args: argparse.Namespace, target: Target, networks: list[Trainable], entries: list[list[dict[str, Any]]]
) -> None:
    """Time each network as the node serves it; all rows of a network show this time."""
    from multi_dnn_ros.planning.timing import compare

    if len({network.size for network in networks}) > 1:
        raise UsageError("--latency compares networks of one input size; these have several: set --size")
    width, height = networks[0].size
    modules = [network.network for network in networks]
    for count, times in compare(modules, (1, 3, height, width), target, (1, instances(args, target))).items():
        for rows, ms in zip(entries, times, strict=True):
            for row in rows:
                row["latency_ms"].append({"instances": count, "ms": ms, "target": target.name()})
