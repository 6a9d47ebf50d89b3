"""``multi-dnn evaluate``: scores, cost and latency of DNNs side by side."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import networks
from multi_dnn_ros.cli.figures import rows_table, write_figures
from multi_dnn_ros.cli.options import NETWORK, Commands, add_command, add_options, positive, read_config
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.settings.forms import PRECISIONS

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.trainable import Trainable

#: Options that are allowed only with MODEL.
_FOR_MODEL = "for MODEL"
_TEXT = f"""\
Compare the scores, operations and latency of DNNs.

Each DNN is scored on the test part of the data, and its cost is shown: MACs, parameters, file size and, with --latency,
the time per inference on --device. The first MODEL is the baseline of the comparison, for example the original network
before `decompose` and `retrain`.

Classifiers get top-1 and top-5 accuracy, detectors COCO's mAP, lane networks the F1 score of lane pixels within 3
pixels at a width of 320. Scores are those of the network in float32; --served adds a row with the scores at the
precision and backend that the node uses.

--params-file scores each result of a DNN with its configured crop, on whole images, in pixels of the image. Results of
a kind without a score are listed with the reason.

{networks.DATA_HELP}
examples:
  multi-dnn evaluate builtin:object object.safetensors better.safetensors --data road --latency --report out/object
  multi-dnn evaluate builtin:object --data road --served --precision int8 --device cpu
  multi-dnn evaluate people.onnx --labels person --data coco:coco --thresholds
  multi-dnn evaluate --params-file my_robot.yaml --dnn road --data coco:my_roads --data lanes:my_lanes
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "evaluate", _TEXT, run, libraries=("pycocotools",))
    add = parser.add_argument
    add_options(parser, "models", nargs="*")
    add_options(parser, "--params-file", help="instead of MODEL: a DNN of this parameter file, with all its results")
    add("--dnn", metavar="NAME", help="the DNN of --params-file (default: its only one)")
    add_options(parser, "--data", "--scenes", "--device", "--report")
    add("--limit", type=positive, metavar="N", help="score only N images, evenly spaced (default: all)")
    group = parser.add_argument_group(_FOR_MODEL)
    add = group.add_argument
    add_options(group, "--batch-size", *NETWORK)
    add("--thresholds", action="store_true",
        help="also list precision, recall and false boxes per image at score thresholds from 0.05 to 0.95")  # fmt: skip
    add("--latency", action="store_true", help="time the networks in turn")
    add("--served", action="store_true",
        help="add a row per network as the node serves it, with --backend at --precision on --device")  # fmt: skip
    add_options(group, "--backend")
    add_options(group, "--precision", choices=PRECISIONS)
    add("--calibration-images", default="", metavar="DIR",
        help="for int8: images on which value ranges are measured (default: generated road images)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Score the networks, print the table and write the report."""
    if args.params_file is None and args.dnn is not None:
        raise UsageError("--dnn names a DNN of --params-file, which is missing")
    if bool(args.models) == (args.params_file is not None):
        raise UsageError("expected either MODEL or --params-file")
    if args.params_file is not None:
        return _run_configured(args)
    networks.check_files(args, args.data)
    from multi_dnn_ros.serving.choices import choose_device

    networks.check_weights(args)
    device = choose_device(args.device, "--device is")
    found = [networks.read_trainable(args, model) for model in args.models]
    task = found[0].task
    if args.thresholds and task == "classes":
        raise UsageError(f"--thresholds is for detectors and lane networks; {found[0].model} is a classifier")
    if other := next((network for network in found if network.task != task), None):
        raise UsageError(
            f"{other.model} is for {other.task}, {found[0].model} for {task}; expected networks of one task"
        )
    if args.latency and len({network.size for network in found}) > 1:
        raise UsageError("--latency compares networks of one input size; these have several: set --size")
    targets = []
    for network in found if args.served or args.latency else ():
        targets.append(
            networks.read_target(args, partial(networks.calibration_inputs, network, args.calibration_images))
        )
        targets[-1].make_backend()  # raises for a precision that the device does not have, before minutes of scoring
    groups = [
        _scored(args, network, device, target if args.served else None)
        for network, target in zip_longest(found, targets)
    ]
    if args.latency:
        from multi_dnn_ros.planning.timing import compare

        width, height = found[0].size
        modules = [network.network for network in found]
        for count, times in compare(modules, (1, 3, height, width), targets[0], networks.copies(targets[0])).items():
            for group, ms in zip(groups, times, strict=True):  # all rows of a network show its time
                for row in group:
                    row["latency_ms"].append({"instances": count, "ms": ms, "target": targets[0].name()})
    rows = [row for group in groups for row in group]
    _print(rows)
    report = args.report and args.report / "report.json"
    write_figures(report, {"device": str(device), "task": task, "networks": rows})
    return 0


def _scored(
    args: argparse.Namespace, network: Trainable, device: torch.device, target: Target | None
) -> list[dict[str, Any]]:
    """The rows of a network: in float32; with a target, also as the node serves it."""
    from multi_dnn_ros.training.data import evenly_spaced
    from multi_dnn_ros.training.metrics import NoTruth
    from multi_dnn_ros.training.retrain import check_labels
    from multi_dnn_ros.training.scoring import Served, operating_points, score_rows
    from multi_dnn_ros.vision.results import OutputError

    entries, modules = [_cost(network)], [network.network]
    if target is not None:
        chain = Served(network.network, network.size, target)  # while the network is on the CPU
        served: dict[str, Any] = {"backend": target.backend, "precision": target.precision, "target": target.name()}
        entries.append({**entries[0], "served": served, "scores": {}, "latency_ms": []})
        modules.append(chain)
    network.network.to(device)
    for data in networks.read_data(args, network):
        check_labels(network, data)
        test = data.part("test")
        rows = test.only(evenly_spaced(args.limit or len(test), len(test)))
        for entry, module in zip(entries, modules, strict=True):
            name = f"{label(entry)} on {data.name}"
            scores: dict[str, float] = {"images": len(rows)}
            entry["scores"][data.name] = scores
            try:
                scores |= score_rows(network, rows, module, args.batch_size, name)
            except OutputError as error:
                raise CommandError(f"{name} cannot be scored: {error}") from None
            except NoTruth as error:
                if not args.thresholds:
                    raise CommandError(f"{data.name}: {error}; --thresholds counts false detections there") from None
            if args.thresholds:
                entry.setdefault("operating_points", {})[data.name] = operating_points(
                    network, rows, module, args.batch_size, f"{name}, thresholds"
                )
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


def label(network: Mapping[str, Any]) -> str:
    """Name of a row: the model and, after it, the backend that served it."""
    served = network["served"]
    return str(network["model"]) + (f", served: {served['backend']} {served['precision']}" if served else "")


def _print(rows: list[dict[str, Any]]) -> None:
    """Print a row per network, with changes relative to the first, and the precision and recall by threshold."""

    def cell(value: float, baseline: float) -> str:
        return f"{value:.3f}" + (f" ({value / baseline - 1:+.1%})" if row is not first and baseline else "")

    first, lines = rows[0], []
    for row in rows:
        line = {"network": label(row)}
        for data, scores in row["scores"].items():
            where = "" if len(first["scores"]) == 1 else f" ({data})"
            # The score of a class, such as map50_car, is only in the report.
            line |= {f"{name}{where}": f"{value:.4f}" for name, value in scores.items()
                     if name != "images" and not name.startswith("map50_")}  # fmt: skip
        for name, key, unit in (("GMACs", "macs", 1e9), ("M parameters", "parameters", 1e6), ("MB", "file_bytes", 1e6)):
            line[name] = cell(row[key] / unit, first[key] / unit)
        for own, before in zip(row["latency_ms"], first["latency_ms"], strict=True):
            name = "ms alone" if own["instances"] == 1 else f"ms, {own['instances']} at once"
            line[name] = cell(own["ms"], before["ms"])
        lines.append(line)
    print(rows_table(lines))
    counts = ", ".join(f"{name} ({scores['images']} images)" for name, scores in first["scores"].items())
    print(f"Scored on the test part: {counts}.")
    for row in rows:
        for name, points in row.get("operating_points", {}).items():
            print(f"\n{label(row)} on {name}\n{rows_table(points)}")


def _run_configured(args: argparse.Namespace) -> int:
    """Score each result of the DNN of --params-file on whole images. Returns 1 if no result has a score."""
    (group,) = (group for group in args.parser._action_groups if group.title == _FOR_MODEL)
    for action in group._group_actions:
        if getattr(args, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[0]} is for MODEL; the DNN has its parameters in --params-file")
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.serving.choices import choose_device
    from multi_dnn_ros.training.data import evenly_spaced
    from multi_dnn_ros.training.scoring import open_images, score_dnn
    from multi_dnn_ros.vision.results import OutputError

    config = read_config(args)
    name = next(iter(config.dnns)) if args.dnn is None and len(config.dnns) == 1 else args.dnn
    if name not in config.dnns:
        raise UsageError(f"--dnn is {name}; the parameter file has: {', '.join(config.dnns)}")
    settings, device = config.dnns[name], choose_device(args.device, "--device is")
    dnn = load_dnn(name, settings)
    rows: list[dict[str, Any]] = []
    # Open all data first, so that a mistake in the last --data is reported before the others are scored.
    sets = [open_images(data, dnn, args.scenes) for data in args.data]
    for data, images in [(data, data.part("test")) for data in sets]:
        part = images.only(evenly_spaced(args.limit or len(images), len(images)))
        try:
            found = score_dnn(dnn, data, part, device)
        except OutputError as error:
            raise CommandError(f"dnn.{name} cannot be scored on {data.name}: {error}") from None
        for result, scores in found.items():
            outcome = {"reason": scores} if isinstance(scores, str) else {"scores": scores}
            rows.append({"result": result, "data": data.name, "images": len(part), **outcome})
    print(rows_table([
        {"result": row["result"], "data": row["data"], "images": row["images"],
         "scores": row.get("scores") or f"none: {row['reason']}"}
        for row in rows
    ]))  # fmt: skip
    about = {"dnn": name, "model": settings.model, "crop": list(settings.crop)}
    write_figures(args.report and args.report / "report.json", {"device": str(device), **about, "results": rows})
    return 0 if any("scores" in row for row in rows) else 1
