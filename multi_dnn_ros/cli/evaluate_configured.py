"""``multi-dnn evaluate --params-file``: scores of each result of a DNN as it is configured."""

from __future__ import annotations

import argparse
from typing import Any

from multi_dnn_ros.cli.configured_dnn import read_configured
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.common.errors import CommandError

JSON_NAME = "report.json"
#: Options that are allowed only with MODEL, with their defaults.
MODEL_OPTIONS: dict[str, object] = {
    "weights": "default", "num-classes": 0, "size": None, "decoder": "auto", "labels": [], "keep": [],
    "thresholds": False, "batch-size": 64, "served": False, "latency": False, "backend": "auto",
    "precision": "auto", "calibration-images": "", "sms": None,
}  # fmt: skip


def evaluate_configured(args: argparse.Namespace) -> int:
    """Score the DNN on the test part of each --data, print a table, and write the report. Returns 1 if no result has a
    score.

    Raises CommandError, UsageError, ParameterError, ModelError, DatasetError.
    """
    from multi_dnn_ros.common.reporting import provenance, table, write_json
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.pipeline.choices import choose_device
    from multi_dnn_ros.training.configured_scores import open_images, score_dnn, scored_labels
    from multi_dnn_ros.training.data import evenly_spaced
    from multi_dnn_ros.training.samples import SomeRows
    from multi_dnn_ros.vision.results import OutputError

    if args.report is not None:
        check_writable("--report", args.report / JSON_NAME)
    name, config = read_configured(args)
    device = choose_device(args.device, "--device is")
    dnn = load_dnn(name, config.dnns[name])
    results: list[dict[str, Any]] = []
    # Open all data first, so that a mistake in the last --data is reported before the others are scored.
    sets = [open_images(data, scored_labels(dnn), args.scenes) for data in args.data]
    for data, images in [(data, data.part("test")) for data in sets]:
        rows = SomeRows(images, evenly_spaced(args.limit or len(images), len(images)))
        try:
            found = score_dnn(dnn, data, rows, device)
        except OutputError as error:
            raise CommandError(f"dnn.{name} cannot be scored on {data.name}: {error}") from None
        for result, scores in found.items():
            entry = {"result": result, "data": data.name, "images": len(rows)}
            results.append({**entry, **({"reason": scores} if isinstance(scores, str) else {"scores": scores})})
    lines = [(row["result"], row["data"], str(row["images"]), _text(row)) for row in results]
    print(table(("result", "data", "images", "scores"), lines))
    if args.report is not None:
        settings = config.dnns[name]
        about = {"dnn": name, "model": settings.model, "crop": list(settings.crop)}
        write_json(args.report / JSON_NAME, {**provenance(), "device": str(device), **about, "results": results})
        print(f"report written to {args.report / JSON_NAME}")
    return 0 if any("scores" in row for row in results) else 1


def _text(row: dict[str, Any]) -> str:
    scores = row.get("scores")
    if not isinstance(scores, dict):
        return f"none: {row['reason']}"
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
