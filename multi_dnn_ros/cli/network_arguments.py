"""Arguments of the offline verbs that name a network and data, and what they name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural, positive, size
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.backends import Backend, Tensors
    from multi_dnn_ros.models.dnn import Source
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.data import Data
    from multi_dnn_ros.training.trainable import Trainable

#: As the parameter dnn.<dnn>.precision.
PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16", "int8")
#: Of an argument that names a network.
MODEL_HELP = ", ".join(extensions.model_forms())
DATA_HELP = """\
data, KIND:PATH:
  cifar10:PATH   CIFAR-10: its archive, or a folder or archive of train/<class>/*.jpg, test/<class>/*.jpg
  classes:DIR    DIR/train/<class>/*.jpg and DIR/val/... (torchvision's ImageFolder), DIR/test/ where there is one
  coco:DIR       DIR/annotations/instances_train*.json and _val*.json, images in DIR/train*/ and DIR/val*/
  lanes:DIR      DIR/train/images/NAME.jpg with DIR/train/masks/NAME.png (not 0 = lane), DIR/val/...
  road:DIR       generated road with exact truth, rendered into DIR once; `road` alone: into the user's cache
  drive:DIR      DIR/*.mp4 with DIR/lane_masks/VIDEO_<frame>.png: learns from the first half, is scored on the second
"""


def add_network(parser: argparse._ActionsContainer) -> None:
    """How a network is read, beside its name."""
    add = parser.add_argument
    add("--weights", default="default", help="of a torchvision builder: a file, a name such as COCO_V1, or random")
    add("--num-classes", type=natural, default=0, metavar="N", help="of a torchvision builder (default: its own)")
    add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")
    add("--decoder", choices=("auto", "classification", *extensions.names(extensions.DECODERS)), default="auto",
        help="what the outputs mean, where a file does not say it (default: %(default)s)")  # fmt: skip
    add(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="classes by number (default: the model's, or the data's)",
    )
    add("--keep", nargs="+", default=[], metavar="NAME", help="lane segmentation: which classes are lane")


def add_data(parser: argparse._ActionsContainer) -> None:
    """What a network is trained or scored on."""
    add = parser.add_argument
    add("--data", action="append", required=True, metavar="KIND:PATH", help="see above; may be given several times")
    add("--scenes", type=positive, default=6000, metavar="N", help="road: scenes to learn from (default: %(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:<number> (default: %(default)s)")


def read_trainable(args: argparse.Namespace, model: str, *, smoothing: float = 0.1) -> Trainable:
    """The network `model` with the arguments of add_network."""
    from multi_dnn_ros.models.registry import source_of
    from multi_dnn_ros.models.sources import load_network
    from multi_dnn_ros.training.trainable import make_trainable

    # The rest of the arguments is for sources that take weights; others know their own.
    found = source_of(model)
    built = found is not None and found.takes_weights
    source = load_network(
        model,
        weights=args.weights if built else "default",
        num_classes=args.num_classes if built else 0,
        size=args.size,
    )
    return make_trainable(
        source, model, size=args.size, decoder=args.decoder, labels=args.labels, keep=args.keep, smoothing=smoothing
    )


def read_data(args: argparse.Namespace, network: Trainable) -> list[Data]:
    """The sets of --data for a network."""
    from multi_dnn_ros.training.data import DataRequest, open_data

    wanted = DataRequest(network.task, network.framing, network.labels, args.scenes)
    return [open_data(name, wanted) for name in args.data]


def origin(model: str, source: Source) -> str:
    """What a network was built from, as its artifact says it: a name, or the file's name."""
    from multi_dnn_ros.models.artifact import is_built_from_a_name

    if source.description is not None:
        return source.description.model
    return model if is_built_from_a_name(model) else Path(model).name


def check_output(output: Path, model: str, source: Source) -> None:
    """UsageError unless --output has the suffix that the artifact of this network needs and can be written."""
    from multi_dnn_ros.models.artifact import suffix_of

    suffix = suffix_of(origin(model, source))
    if output.suffix != suffix:
        raise UsageError(f"--output is {output}; what is made from {model} is written as a {suffix} file")
    check_writable("--output", output)


def check_writable(option: str, path: Path) -> None:
    """UsageError where the file `path` could not be written: told now, not after hours of work."""
    if path.is_dir():
        raise UsageError(f"{option} is {path}, which is a folder; expected a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())  # others are made
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} is {path}: {folder} is no folder that can be written to")


def check_built(args: argparse.Namespace, models: Sequence[str]) -> None:
    """UsageError for --weights where none of `models` takes them."""
    if args.weights == "default":
        return
    from multi_dnn_ros.models.registry import MODEL_SOURCES, source_of

    if not any(source.takes_weights for model in models if (source := source_of(model)) is not None):
        forms = ", ".join(source.form for source in MODEL_SOURCES.usable() if source.takes_weights)
        raise UsageError(f"--weights is for {forms}; {', '.join(models)} comes with its own")


def add_target(parser: argparse._ActionsContainer) -> None:
    """How networks are timed: --backend, --precision, --sms, --instances."""
    add = parser.add_argument
    backends = ", ".join(("auto", *extensions.names(extensions.BACKENDS)))
    add("--backend", default="auto", metavar="NAME",
        help=f"that the node will run it with: {backends} (default: %(default)s)")  # fmt: skip
    add("--precision", choices=PRECISIONS, default="auto", help="of the timed runs (default: %(default)s)")
    add("--sms", type=positive, metavar="N", help="share of a GPU to time on, by a CUDA green context (default: all)")
    add("--instances", type=positive, metavar="N", help="copies at once for contention (default: 8 on a GPU, else 2)")


def check_backend(args: argparse.Namespace) -> None:
    """UsageError unless --backend names one."""
    known = extensions.names(extensions.BACKENDS)
    if args.backend != "auto" and args.backend not in known:
        raise UsageError(f"--backend is '{args.backend}'; allowed: auto, {', '.join(known)}")


def read_target(
    args: argparse.Namespace, batch: int = 1, calibration: Callable[[], Sequence[Tensors]] | None = None
) -> Target:
    """Where networks are timed: --device, --sms, --backend and --precision.

    calibration: inputs of a network, on which int8 is calibrated. UsageError for int8 without them.
    """
    if args.precision == "int8" and calibration is None:
        raise UsageError(
            "--precision int8 is calibrated on images of the network that is served; use evaluate --served"
        )
    from multi_dnn_ros.benchmark.paper.partition import check_partition
    from multi_dnn_ros.pipeline.choices import backend_name, choose_backend, choose_device
    from multi_dnn_ros.planning.timing import Target

    check_backend(args)
    device = choose_device(args.device)
    name = backend_name(args.backend, device, precision=args.precision)
    check_partition(device, args.sms)

    def make_backend() -> Backend:
        return choose_backend(args.backend, device, args.precision, calibration=calibration)

    return Target(device, name, make_backend, args.precision, batch, sms=args.sms or 0)


def instances(args: argparse.Namespace, target: Target) -> int:
    """How many copies run at once when contention is measured."""
    return int(args.instances or (8 if target.device.type == "cuda" else 2))
