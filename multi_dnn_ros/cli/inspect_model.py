"""``multi-dnn inspect``: what a model is, which decoder reads it, and the parameters that serve it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import inspect_configured
from multi_dnn_ros.cli.arguments import fraction, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.configured_dnn import add_configured_dnn, check_configured
from multi_dnn_ros.cli.network_arguments import MODEL_HELP, WEIGHTS_HELP
from multi_dnn_ros.cli.options import check_writable
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.cli.inspection import Inspection

_DETAILS = """\
Show the inputs and outputs of a model, which decoder reads its outputs and why, its class names, operators, MACs and
parameters, on which backends of this machine it runs, and the parameters to paste into a file for the node.

If no decoder fits, the nearest ones are listed with the difference. Exit code 1: the node cannot serve the model as it
is.
"""
_EXAMPLES = """\
multi-dnn inspect yolov8n.onnx
multi-dnn inspect yolox_nano.onnx --image road.jpg --output found.png
multi-dnn inspect people.onnx --labels person --json
multi-dnn inspect --params-file my_robot.yaml --dnn road --image road.jpg
multi-dnn inspect torchvision:ssdlite320_mobilenet_v3_large --weights random
"""
#: Maximum number of operators in a line of text; --json has all of them.
_OPERATORS = 12


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "inspect", "show the inputs, outputs, decoder and parameters of a model", details=_DETAILS,
        examples=_EXAMPLES, run=run,
    )  # fmt: skip
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"model to inspect: {MODEL_HELP}")
    add = parser.add_argument
    add_configured_dnn(parser)
    add("--weights", default="default", metavar="NAME", help=WEIGHTS_HELP)
    add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")
    decoders = ("auto", *extensions.names(extensions.DECODERS))
    add("--decoder", choices=decoders, default="auto", metavar="NAME",
        help=f"decoder of the outputs: {', '.join(decoders)} (default: %(default)s, the model's own, otherwise the "
        "one that reads outputs of these shapes)")  # fmt: skip
    add("--labels", nargs="+", default=[], metavar="NAME", help="class names, a file of them, coco80 or coco91")
    add("--keep", nargs="+", default=[], metavar="NAME", help="classes to report")
    add("--compile", action="store_true", help="also try backends that take minutes to compile")
    add("--json", action="store_true", help="print JSON")
    image = parser.add_argument_group("one image through the model, on the CPU")
    image.add_argument("--image", type=Path, metavar="FILE", help="draw what the model finds in this JPEG or PNG")
    image.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the picture (default: <model>_<image>.png in the current folder)",
    )
    image.add_argument(
        "--threshold",
        type=fraction,
        default=0.0,
        metavar="X",
        help="score threshold, 0..1; 0: the model's own, otherwise that of the decoder (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Inspect the model, print the result and draw the image."""
    if args.output is not None and args.image is None:
        raise UsageError("--output is for the picture of --image; give --image, too")
    if args.output is not None and args.output.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UsageError(f"--output is {args.output}; expected a name that ends in .png or .jpg")
    if args.output is not None and args.output.resolve() == args.image.resolve():
        raise UsageError(
            f"--output {args.output} is the file of --image, which would be overwritten; name another file"
        )
    check_configured(args, args.model, inspect_configured.MODEL_OPTIONS)
    if args.params_file is not None:
        if args.output is not None:
            check_writable("--output", args.output)
        return inspect_configured.inspect_configured(args)
    output = args.output
    if args.image is not None:
        output = output or Path(f"{Path(args.model.replace(':', '_')).stem}_{args.image.stem}.png")
        check_writable("--output", output)
    import torch

    from multi_dnn_ros.cli.inspection import as_arguments, inspect_model
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.settings.schema import DnnConfig

    width, height = args.size or (0, 0)
    config = DnnConfig(
        role="network", model=args.model, weights=args.weights, decoder=args.decoder, labels=tuple(args.labels),
        keep=tuple(args.keep), input_width=width, input_height=height, score_threshold=args.threshold,
    )  # fmt: skip
    devices = [torch.device("cpu"), *([torch.device("cuda:0")] if torch.cuda.is_available() else [])]
    try:
        result = inspect_model(config, devices, compile_too=args.compile)
    except ModelError as error:
        raise CommandError(as_arguments(str(error))) from error
    content = result.as_json()
    if args.image is not None and result.dnn is not None:
        from multi_dnn_ros.cli.inspect_image import draw_image

        content["image"] = draw_image(result.dnn, args.image, output)
    print(json.dumps(content, indent=2) if args.json else _text(result, content))
    if args.image is not None and result.dnn is None:
        raise CommandError(f"--image: {args.model} cannot be run; the reason is the first problem above")
    return 0 if result.served else 1


def _text(result: Inspection, content: dict[str, object]) -> str:
    lines = [f"model       {result.model}"]
    if result.header is not None:
        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in result.header.opsets.items())
        lines.append(f"file        ONNX of {result.header.producer or 'an unknown program'}, opset {opsets}")
    lines += [f"input       {text}" for text in result.inputs]
    lines += [f"output      {text}" for text in result.outputs]
    if result.decoder:
        lines.append(f"decoder     {result.decoder}: {result.why}")
    else:
        lines.append("decoder     none" if result.why else "decoder     unknown")
    if result.labels:
        shown = ", ".join(result.labels[:8]) + (", ..." if len(result.labels) > 8 else "")
        lines.append(f"labels      {len(result.labels)} by {result.labels_from}: {shown}")
    if result.operators:
        shown = ", ".join(f"{name} {count}" for name, count in list(result.operators.items())[:_OPERATORS])
        more = len(result.operators) - _OPERATORS
        lines.append(f"operators   {shown}" + (f" and {more} others" if more > 0 else ""))
    if result.macs is not None and result.parameters is not None:
        lines.append(f"cost        {result.macs / 1e9:.3f} GMACs, {result.parameters / 1e6:.2f} million parameters")
    lines += [f"backend     {name}: {text}" for name, text in result.backends.items()]
    lines += [f"problem     {text}" for problem in result.problem_texts for text in problem.splitlines()]
    image = content.get("image")
    if isinstance(image, dict):
        lines += [f"found       {text}" for text in image["found"] or ["nothing above the threshold"]]
        lines.append(f"picture     {image['file']}")
    if result.yaml:
        lines += ["", "# parameters for the node", result.yaml.rstrip()]
    return "\n".join(lines)
