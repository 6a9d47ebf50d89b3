"""``multi-dnn evaluate``: scores, cost and latency of DNNs side by side."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
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
    check_files,
    check_weights,
    instances,
    read_data,
    read_target,
    read_trainable,
)
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.data import Data
    from multi_dnn_ros.training.samples import Rows
    from multi_dnn_ros.training.trainable import Trainable

JSON_NAME = evaluate_configured.JSON_NAME
_DETAILS = f"""\
Each DNN is scored on the test part of the data, and its cost is shown: MACs, parameters, file size and, with --latency,
the time per inference on --device. The first MODEL is the baseline of the comparison, for example the original network
before `decompose` and `retrain`.

Classifiers get top-1 and top-5 accuracy, detectors COCO's mAP, lane networks the F1 score of lane pixels within 3
pixels at a width of 320. Scores are those of the network in float32; --served adds a row with the scores at the
precision and backend that the node uses.

--params-file scores each result of a DNN with its configured crop, on whole images. Each result is compared
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
                        help="folder to write report.json to: all scores, costs and times")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Score the networks, print the table and write the report."""
    check_configured(args, args.models, evaluate_configured.MODEL_OPTIONS)
    check_files(args.weights, args.data, *args.models)
    if args.params_file is not None:
        return evaluate_configured.evaluate_configured(args)
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.pipeline.choices import choose_device

    check_weights(args, args.models)
    report = args.report / JSON_NAME if args.report is not None else None
    if report is not None:
        check_writable("--report", report)
    device = choose_device(args.device, "--device is")
    networks = [read_trainable(args, model) for model in args.models]
    task = networks[0].task
    if args.thresholds and task == "classes":
        raise UsageError(f"--thresholds is for detectors and lane networks; {networks[0].model} is a classifier")
    for network in networks[1:]:
        if network.task != task:
            raise UsageError(
                f"{network.model} is for {network.task}, {networks[0].model} for {task}; expected networks of one task"
            )
    targets = [_target(args, network) for network in networks] if args.served or args.latency else []
    content: dict[str, Any] = {**provenance(), "device": str(device), "task": task, "networks": []}
    groups: list[list[dict[str, Any]]] = []
    for network, target in zip_longest(networks, targets):
        groups.append(_scored(args, network, device, target if args.served else None))
        content["networks"] += groups[-1]
        if report is not None:  # after each network, because scoring takes long
            write_json(report, content)
    if args.latency:
        _add_latency(args, targets[0], networks, groups)
        if report is not None:
            write_json(report, content)
    _print(content)
    if report is not None:
        print(f"report written to {report}")
    return 0


def _target(args: argparse.Namespace, network: Trainable) -> Target:
    target = read_target(args, calibration=partial(calibration_inputs, network, args.calibration_images))
    target.make_backend()  # raises for a precision that the device does not have, before minutes of scoring
    return target


def _scored(
    args: argparse.Namespace, network: Trainable, device: torch.device, target: Target | None
) -> list[dict[str, Any]]:
    """The rows of a network: in float32; with a target, also as the node serves it."""
    from multi_dnn_ros.training.scoring import Served, operating_points

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
            rows = _rows(args, data)
            for entry, module in zip(entries, modules, strict=True):
                name = f"{label(entry)} on {data.name}"
                entry["scores"][data.name] = _scores(args, network, data, rows, module, name)
                if args.thresholds:
                    entry.setdefault("operating_points", {})[data.name] = operating_points(
                        network, rows, module, args.batch_size, f"{name}, thresholds"
                    )
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


def _scores(
    args: argparse.Namespace, network: Trainable, data: Data, rows: Rows, module: nn.Module, name: str
) -> dict[str, float]:
    from multi_dnn_ros.training.metrics import NoTruth
    from multi_dnn_ros.training.retrain import check_labels
    from multi_dnn_ros.training.scoring import score_rows
    from multi_dnn_ros.vision.results import OutputError

    check_labels(network, data)
    try:
        scores = score_rows(network, rows, module, args.batch_size, name)
    except OutputError as error:
        raise CommandError(f"{name} cannot be scored: {error}") from None
    except NoTruth as error:
        if not args.thresholds:
            raise CommandError(f"{data.name}: {error}; --thresholds counts false detections there") from None
        scores = {}
    return {"images": len(rows), **scores}


def _rows(args: argparse.Namespace, data: Data) -> Rows:
    """The test part of the data, or --limit images of it."""
    from multi_dnn_ros.training.data import evenly_spaced
    from multi_dnn_ros.training.samples import SomeRows

    rows = data.part("test")
    return SomeRows(rows, evenly_spaced(args.limit or len(rows), len(rows)))


def _add_latency(
    args: argparse.Namespace, target: Target, networks: list[Trainable], groups: list[list[dict[str, Any]]]
) -> None:
    """Time each network as the node serves it; all rows of a network show this time."""
    from multi_dnn_ros.planning.timing import compare

    if len({network.size for network in networks}) > 1:
        raise UsageError("--latency compares networks of one input size; these have several: set --size")
    width, height = networks[0].size
    modules = [network.network for network in networks]
    for count, times in compare(modules, (1, 3, height, width), target, (1, instances(args, target))).items():
        for rows, ms in zip(groups, times, strict=True):
            for row in rows:
                row["latency_ms"].append({"instances": count, "ms": ms, "target": target.name()})


def label(network: Mapping[str, Any]) -> str:
    """Name of a row: the model and, after it, the backend that served it."""
    served = network["served"]
    return str(network["model"]) + (f", served: {served['backend']} {served['precision']}" if served else "")


def _print(content: Mapping[str, Any]) -> None:
    """Print a row per network, with changes relative to the first, and the precision and recall by threshold."""
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.demo.comparison import with_change

    networks = content["networks"]
    first, sets = networks[0], list(networks[0]["scores"])
    # The score of a class, such as map50_car, is only in the report.
    shown = list(dict.fromkeys(name for network in networks for scores in network["scores"].values() for name in scores
                               if name != "images" and not name.startswith("map50_")))  # fmt: skip
    header = ["network", *(name if len(sets) == 1 else f"{name} ({data})" for data in sets for name in shown)]
    header += ["GMACs", "M parameters", "MB"]
    header += ["ms alone" if it["instances"] == 1 else f"ms, {it['instances']} at once" for it in first["latency_ms"]]
    rows = []
    for network in networks:
        cells = [label(network), *(_share(network["scores"][data].get(name)) for data in sets for name in shown)]
        values = [(each["macs"] / 1e9, each["parameters"] / 1e6, each["file_bytes"] / 1e6,
                   *(entry["ms"] for entry in each["latency_ms"])) for each in (network, first)]  # fmt: skip
        cells += [
            with_change(own, None if network is first else of_first) for own, of_first in zip(*values, strict=True)
        ]
        rows.append(cells)
    print(table(header, rows))
    counts = ", ".join(f"{name} ({scores['images']} images)" for name, scores in first["scores"].items())
    print(f"Scored on the test part: {counts}.")
    for network in networks:
        for name, points in network.get("operating_points", {}).items():
            lines = [
                [f"{point['threshold']:.2f}", *(_share(point[key]) for key in list(point)[1:])] for point in points
            ]
            print(f"\n{label(network)} on {name}")
            print(table(("score threshold", "precision", "recall", "false per image"), lines))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
