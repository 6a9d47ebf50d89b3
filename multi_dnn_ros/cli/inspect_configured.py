"""``multi-dnn inspect --params-file``: the results of a DNN as it is configured, and all of them in one picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.configured_dnn import read_configured

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.settings.schema import NodeConfig

#: Options that are allowed only with MODEL, with their defaults.
MODEL_OPTIONS: dict[str, object] = {
    "weights": "default", "size": None, "decoder": "auto", "labels": [], "keep": [], "threshold": 0.0, "compile": False,
}  # fmt: skip


def inspect_configured(args: argparse.Namespace) -> int:
    """Print the results of the DNN `--dnn` of `--params-file` and how each is decoded; with `--image`, also draw them.

    Returns 0. Raises UsageError, ParameterError, ModelError; ConfigError for a network that cannot process its tiles;
    CommandError for an image that does not exist.
    """
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.pipeline.tiles_check import check_tiles

    name, config = read_configured(args)
    dnn = load_dnn(name, config.dnns[name])
    check_tiles(dnn, config.dnns[name])
    content = _content(dnn, config)
    if args.image is not None:
        from multi_dnn_ros.cli.inspect_image import draw_image

        content["image"] = draw_image(dnn, args.image, args.output or Path(f"{name}_{args.image.stem}.png"))
    print(json.dumps(content, indent=2) if args.json else _text(content))
    return 0


def _content(dnn: Dnn, config: NodeConfig) -> dict[str, Any]:
    from multi_dnn_ros.vision.results import result_name

    settings = config.dnns[dnn.name]
    return {
        "dnn": dnn.name,
        "model": settings.model,
        "input_size": [dnn.preprocess.width, dnn.preprocess.height],
        "crop": list(settings.crop),
        "tiles": settings.tiles,
        "results": {
            result_name(dnn.name, output): {
                "decoder": type(result.decoder).name,
                "result_kind": result.result_kind,
                "raw_outputs": None if result.raw_outputs is None else list(result.raw_outputs),
                "labels": list(result.labels),
            }
            for output, result in dnn.outputs.items()
        },
    }


def _text(content: dict[str, Any]) -> str:
    width, height = content["input_size"]
    lines = [f"dnn         {content['dnn']}: {content['model']}", f"input       {width} x {height}"]
    if content["crop"]:
        lines.append(f"crop        {content['crop']}")
    if content["tiles"] != "1x1":
        lines.append(f"tiles       {content['tiles']}")
    for name, result in content["results"].items():
        read = "all" if result["raw_outputs"] is None else ", ".join(map(str, result["raw_outputs"]))
        shown = ", ".join(result["labels"][:8]) + (", ..." if len(result["labels"]) > 8 else "")
        lines.append(f"result      {name}: {result['result_kind']} by decoder {result['decoder']}, raw outputs: {read}")
        lines.append(f"            labels: {shown}")
    image = content.get("image")
    if image is not None:
        lines += [f"found       {text}" for text in image["found"] or ["nothing above the threshold"]]
        lines.append(f"picture     {image['file']}")
    return "\n".join(lines)
