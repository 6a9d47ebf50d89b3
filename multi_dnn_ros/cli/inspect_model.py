"""Show the inputs, outputs, decoder and parameters of a model.

For a model the command shows inputs and outputs, which decoder reads the outputs and why, class names, operators, MACs
and parameters, whether the CPU of this machine runs it, and the parameters to paste into a file for the node. If no
decoder fits, the nearest ones are listed with the difference. Exit code 1: the node cannot serve this file.

`multi-dnn demo --video road.jpg --params-file my_robot.yaml` draws all results of configured DNNs.

examples:
  multi-dnn inspect yolox_nano.onnx --image road.jpg --output found.png
  multi-dnn inspect people.onnx --labels person --json
  multi-dnn inspect torchvision:ssdlite320_mobilenet_v3_large --weights random
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli import networks
from multi_dnn_ros.cli.options import NETWORK, Commands, add_command, add_options
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Dnn, Source
    from multi_dnn_ros.settings.schema import DnnConfig

#: Name of the DNN of MODEL in errors, and the arguments that set its parameters.
_NAME = "model"
_ARGUMENTS = {"model": "argument MODEL", "weights": "--weights", "decoder": "--decoder", "labels": "--labels"}
_PICTURES = (".png", ".jpg", ".jpeg")


class ModelProblems(CommandError):
    """The node cannot serve the model. problems: a line for each reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "inspect", __doc__, run)
    add = parser.add_argument
    add_options(parser, "model", *NETWORK)
    add("--json", action="store_true", help="print JSON")
    add("--image", type=Path, metavar="FILE",
        help="draw what the model finds in this JPEG or PNG, computed on the CPU")  # fmt: skip
    add("--output", type=Path, metavar="FILE",
        help="file for the picture of --image (default: <model>_<image>.png in the current folder)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Inspect the model, print the result and draw the image."""
    if args.image is not None:
        _check_picture(args)
    elif args.output is not None:
        raise UsageError("--output is for the picture of --image; give --image, too")
    networks.check_files(args)
    from multi_dnn_ros.common.errors import summarize_error
    from multi_dnn_ros.models.errors import ModelError

    content: dict[str, Any] = {"model": args.model}
    problems: list[str] = []
    try:
        dnn = _inspect(args, content)
        if args.image is not None:
            _draw_image(dnn, args.image, args.output)
            content["picture"] = str(args.output)
    except (ModelError, extensions.ExtensionError) as error:
        problems += str(error).splitlines()
    except RuntimeError as error:
        problems.append(f"{args.model} cannot be run: {summarize_error(error)}")
    # Messages about the parameters of the DNN, as messages about the arguments that set them.
    problems = [
        re.sub(rf"parameter dnn\.{_NAME}\.(\w+)", lambda match: _ARGUMENTS.get(match[1], match[0]), text).replace(
            f"dnn.{_NAME}: ", ""
        )
        for text in problems
    ]
    content["problems"] = problems
    if args.json or content.keys() > {"model", "problems"}:
        print(json.dumps(content, indent=2) if args.json else _text(content))
    if problems:
        raise ModelProblems(problems)
    return 0


def _check_picture(args: argparse.Namespace) -> None:
    """Check --image and --output before PyTorch is imported, and set the default of --output."""
    if not args.image.is_file():
        raise CommandError(f"--image is {args.image}: no such file")
    if args.output is None:
        args.output = Path(f"{Path(args.model.replace(':', '_')).stem}_{args.image.stem}.png")
    if args.output.suffix not in _PICTURES:
        raise UsageError(f"--output is {args.output}; expected a name that ends in {' or '.join(_PICTURES)}")
    if args.output.resolve() == args.image.resolve():
        raise UsageError(f"--output {args.output} is the file of --image, which would be overwritten; name another")


def _inspect(args: argparse.Namespace, content: dict[str, Any]) -> Dnn:
    """Fill in what is found out about MODEL. Raises ModelError, ExtensionError or RuntimeError, which say why the node
    cannot serve it.
    """
    from multi_dnn_ros.decoders.layout import shape_text
    from multi_dnn_ros.decoders.registry import DECODERS
    from multi_dnn_ros.models.decoder_choice import input_size, recognized, with_shapes
    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.label_names import assumed_labels
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.models.onnx_cut import OptimizedGraph
    from multi_dnn_ros.models.onnx_source import declared
    from multi_dnn_ros.models.sources import load_source
    from multi_dnn_ros.settings.schema import DnnConfig

    width, height = args.size or (0, 0)
    config = DnnConfig(
        role="network", model=args.model, weights=args.weights, decoder=args.decoder, labels=tuple(args.labels),
        num_classes=args.num_classes, input_width=width, input_height=height,
    )  # fmt: skip
    if Path(args.model).suffix.lower() == ".onnx":
        content |= declared(Path(args.model))
    source = load_source(_NAME, config, onnx=True)
    size = input_size(source, config)
    if size is None:
        raise ModelError(f"{args.model} has no input size of its own; give one with --size")
    content |= {"input_size": list(size), "inputs": content.get("inputs", [shape_text((1, 3, size[1], size[0]))])}
    with suppress(ModelError, RuntimeError, AttributeError):  # a network that cannot be run is a problem below
        counted = OptimizedGraph(source.runnable.model, standard_operators=True)
        content |= {"macs": counted.macs, "parameters": counted.parameters}
    classes = source.classes
    named = args.decoder if args.decoder != "auto" else source.decoder
    content |= {"decoder": named, "why": "--decoder" if args.decoder != "auto" else "named by the model"}
    if source.detector is None:
        source = with_shapes(source, args.model, size)
        content["outputs"] = content.get("outputs") or list(map(shape_text, source.outputs or ()))
        found = recognized(source, _NAME, config)
        if not named:
            content |= {"decoder": found.chosen, "why": found.why}
            if found.chosen and not found.decided:
                raise ModelError(f"{found.why}, but the shapes leave a doubt; name the decoder with --decoder")
            if not found.chosen:
                raise ModelError(
                    f"{found.why}; export it in one of these layouts, or write a decoder (docs/extending.md)"
                )
        matching = (match.classes for name, match in found.matches if name == content["decoder"])
        classes = classes or next(matching, 0)
    decoder = DECODERS.get(content["decoder"])
    assumed: dict[str, Any] = {}
    if not (args.labels or source.labels or (decoder.default_labels and classes <= 1)):
        if not classes:
            raise ModelError("the number of classes is unknown: name the classes with --labels")
        assumed["labels"] = assumed_labels(classes)
    if decoder.result_kind == "lanes" and classes > 2:
        assumed["keep"] = ((args.labels or source.labels or assumed["labels"])[-1],)
    if args.decoder == "auto" and not source.decoder:
        assumed["decoder"] = content["decoder"]
    config = config.model_copy(update=assumed)
    dnn = load_dnn(_NAME, config, onnx=True)
    content |= {"result_kind": dnn.result_kind, "labels": list(dnn.labels), "backend": _run_on_cpu(dnn, config)}
    content["yaml"] = _yaml(config, dnn, source, assumed.keys() - {"decoder"})
    return dnn


def _run_on_cpu(dnn: Dnn, config: DnnConfig) -> str:
    """Run the DNN on a black image as the node would on this CPU. Raises RuntimeError or ModelError."""
    from multi_dnn_ros.backends.host import CPU
    from multi_dnn_ros.planning.frame_times import run_on_black
    from multi_dnn_ros.serving.build import make_task
    from multi_dnn_ros.serving.choices import backend_name, choose_backend

    task = make_task(dnn, config, ("camera",), choose_backend("auto", CPU, dnn=_NAME), CPU)
    run_on_black(task, CPU, *task.enlarge_to_min((dnn.preprocess.height, dnn.preprocess.width)))
    return f"runs on the CPU, by {backend_name('auto', CPU, _NAME)}"


def _yaml(config: DnnConfig, dnn: Dnn, source: Source, assumed: Collection[str]) -> str:
    """The parameters that serve this model, with a comment on what was assumed."""
    role = {"lanes": "lane", "detections": "object"}.get(dnn.result_kind, dnn.result_kind)
    file = Path(config.model)
    values: dict[str, object] = {"role": role, "model": str(file.absolute()) if file.is_file() else config.model}
    if config.weights != "default":
        values["weights"] = config.weights
    if config.decoder != "auto":
        values["decoder"] = config.decoder
    values |= {name: list(getattr(config, name)) for name in ("labels", "keep") if getattr(config, name)}
    if (dnn.preprocess.width, dnn.preprocess.height) != source.size:
        values |= {"input_width": dnn.preprocess.width, "input_height": dnn.preprocess.height}
    comments = dict.fromkeys(assumed, "  # assumed, as the file does not say it")
    body = "\n".join(f"        {name}: {json.dumps(value)}{comments.get(name, '')}" for name, value in values.items())
    return f"/**:\n  ros__parameters:\n    dnns: [{role}]\n    dnn:\n      {role}:\n{body}\n"


def _draw_image(dnn: Dnn, image: Path, output: Path) -> None:
    """Run the image through the network in float32, and write the picture with all results."""
    from multi_dnn_ros.camera.sources import ImageSource
    from multi_dnn_ros.models.onnx_network import run_network
    from multi_dnn_ros.vision.drawing import draw
    from multi_dnn_ros.vision.overlay_files import save_picture
    from multi_dnn_ros.vision.result_kind import RESULT_KINDS, Layer
    from multi_dnn_ros.vision.results import result_name, results_by_name

    (source,) = ImageSource(image).items()
    pixels = source.image
    result = dnn.results(run_network(dnn.module, *dnn.array_inputs(pixels)), pixels.shape[:2])
    found = results_by_name(dnn.name, result)
    kinds = {result_name(dnn.name, name): RESULT_KINDS.get(each.result_kind) for name, each in dnn.outputs.items()}
    save_picture(output, draw(pixels, [Layer(name, kinds[name], part) for name, part in found.items()]))


def _text(content: Mapping[str, Any]) -> str:
    """The values of the JSON as lines of a name and a value; the parameters to paste come last."""
    lines = []
    for name, value in content.items():
        if isinstance(value, dict):
            parts = [", ".join(f"{key or 'ai.onnx'} {number}" for key, number in value.items())]
        elif name == "labels":
            parts = [f"{len(value)}: {', '.join(value)}"]
        else:
            parts = value if name in ("inputs", "outputs", "problems") else [f"{value}"]
        if name != "yaml":
            lines += [f"{name:<12}{part if name == 'why' else textwrap.shorten(part, 110)}" for part in parts]
    if "yaml" in content:
        lines += ["", "# parameters for the node", content["yaml"].rstrip()]
    return "\n".join(lines)
