"""Options of the offline commands that name networks and data, and functions that read them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import natural, positive, size
from multi_dnn_ros.cli.options import add_device, check_writable
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.settings.forms import PRECISIONS, model_forms
from multi_dnn_ros.training.data_kinds import help_text, kind_and_path

if TYPE_CHECKING:
    from multi_dnn_ros.backends import Backend, Tensors
    from multi_dnn_ros.models.dnn import Source
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.data import Data
    from multi_dnn_ros.training.trainable import Trainable

#: Values of --backend.
BACKEND_NAMES = ", ".join(("auto", *extensions.names(extensions.BACKENDS)))
#: What an argument that names a network can be.
MODEL_HELP = ", ".join(model_forms())
DATA_HELP = f"""\
data (KIND:PATH):
{help_text()}

Without DIR/test/, the val part is the test part, and images for choosing the best epoch are held out of train: 5 %, at
least 50, and whole recordings (NAME of NAME_<frame>.jpg) if there are several.
"""


def add_model(
    parser: argparse._ActionsContainer, *, several: bool = False, optional: bool = False, what: str = "network"
) -> None:
    """MODEL, or several of them. optional: other options can replace it. what: the first words of its help."""
    parser.add_argument(
        "models" if several else "model", metavar="MODEL", help=f"{what}: {MODEL_HELP}",
        nargs="*" if several and optional else "+" if several else None,
    )  # fmt: skip


def add_timing_weights(parser: argparse._ActionsContainer) -> None:
    """--weights of a command that measures times, for which random ones suffice."""
    parser.add_argument(
        "--weights", default="", metavar="WEIGHTS",
        help="weights of a torchvision network: a file, a name such as COCO_V1, or random (default: random, which does "
        "not change the times)",
    )  # fmt: skip


def add_loading(parser: argparse._ActionsContainer) -> None:
    """--weights, --num-classes, --size."""
    add = parser.add_argument
    add("--weights", default="default", metavar="WEIGHTS",
        help="weights of a torchvision network, required for such a network: a file, a name such as COCO_V1, or "
        "random; other models contain their weights (default: those)")  # fmt: skip
    add("--num-classes", type=natural, default=0, metavar="N",
        help="classes of a torchvision network (default: those of its weights)")  # fmt: skip
    add("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")


def add_network(parser: argparse._ActionsContainer, *, classifiers: bool = True) -> None:
    """How a network is loaded and how its outputs are decoded."""
    add_loading(parser)
    add = parser.add_argument
    decoders = ("auto", *["classification"] * classifiers, *extensions.names(extensions.DECODERS))
    add("--decoder", choices=decoders, default="auto", metavar="NAME",
        help=f"decoder of the outputs: {', '.join(decoders)} (default: %(default)s, the model's own, otherwise the "
        "one that reads outputs of these shapes)")  # fmt: skip
    add("--labels", nargs="+", default=[], metavar="NAME",
        help="class names in the order of their numbers (default: the model's, or the data's)")  # fmt: skip
    add("--keep", nargs="+", default=[], metavar="NAME",
        help="for segmentation networks: the classes that are lane (default: the model's)")  # fmt: skip


def add_data(parser: argparse._ActionsContainer) -> None:
    """What a network is trained or scored on."""
    add = parser.add_argument
    add("--data", action="append", required=True, metavar="KIND:PATH", help="data, see above; may be repeated")
    add("--scenes", type=positive, default=6000, metavar="N",
        help="for data `road`: number of training images to render (default: %(default)s)")  # fmt: skip
    add_device(parser)


def add_calibration(parser: argparse._ActionsContainer) -> None:
    """--calibration-images."""
    parser.add_argument(
        "--calibration-images", default="", metavar="DIR",
        help="for int8: folder of images on which value ranges are measured, as the node's parameter "
        "calibration_images (default: generated road images)",
    )  # fmt: skip


def read_trainable(args: argparse.Namespace, model: str, *, smoothing: float = 0.1) -> Trainable:
    """The network `model`, loaded with the options of :func:`add_network`."""
    from multi_dnn_ros.models.sources import load_network
    from multi_dnn_ros.training.trainable import make_trainable

    weights, classes = weights_of(args, model)
    source = load_network(model, weights=weights, num_classes=classes, size=args.size)
    return make_trainable(
        source, model, size=args.size, decoder=args.decoder, labels=args.labels, keep=args.keep, smoothing=smoothing,
        report=partial(print, file=sys.stderr),
    )  # fmt: skip


def check_given_weights(args: argparse.Namespace, option: str) -> None:
    """Raise UsageError if MODEL takes weights and --weights is not given. option: what needs them."""
    from multi_dnn_ros.models.registry import source_of

    origin = source_of(args.model)
    if not args.weights and origin is not None and origin.takes_weights:
        raise UsageError(f"{option} needs --weights for {args.model}: a name such as IMAGENET1K_V1, a file, or random")


def check_models(*models: str) -> None:
    """Raise CommandError unless each name has the form of a model and, if it is one of a file, the file exists.

    It does not import PyTorch, so that a wrong name is reported at once.
    """
    from multi_dnn_ros.models.registry import source_name

    for model in models:
        form = source_name(model)
        if not form:
            raise CommandError(f"argument MODEL is '{model}'; allowed: {MODEL_HELP}")
        if form.startswith(".") and not Path(model).is_file():
            raise CommandError(f"argument MODEL is '{model}': there is no such file")


def check_files(weights: str, data: Sequence[str], *models: str) -> None:
    """Raise CommandError or DatasetError unless the files of --weights, of data KIND:PATH and of the models exist. It
    does not import PyTorch, so that they are reported at once.
    """
    check_models(*models)
    if Path(weights).suffix and not Path(weights).is_file():
        raise CommandError(f"--weights is '{weights}': there is no such file")
    for name in data:
        kind_and_path(name)


def weights_of(args: argparse.Namespace, model: str) -> tuple[str, int]:
    """--weights and --num-classes if `model` takes weights; other models come with their own."""
    from multi_dnn_ros.models.registry import source_of

    found = source_of(model)
    return (args.weights, args.num_classes) if found is not None and found.takes_weights else ("default", 0)


def read_data(args: argparse.Namespace, network: Trainable) -> list[Data]:
    """The data sets of --data, for a network."""
    from multi_dnn_ros.training.data import DataRequest, open_data

    wanted = DataRequest(network.task, network.framing, network.labels, args.scenes)
    return [open_data(name, wanted) for name in args.data]


def origin(model: str, source: Source) -> str:
    """What an artifact records as its network: a name such as builtin:object, or the name of a file."""
    from multi_dnn_ros.models.artifact import is_built_from_a_name

    if source.description is not None:
        return source.description.model
    return model if is_built_from_a_name(model) else Path(model).name


def check_output(output: Path, model: str, source: Source) -> None:
    """Raise UsageError unless --output has the suffix that the artifact of this network needs, and can be written."""
    from multi_dnn_ros.models.artifact import suffix_of

    suffix = suffix_of(origin(model, source))
    if output.suffix != suffix:
        raise UsageError(f"--output is {output}; expected a {suffix} file for a network made from {model}")
    check_writable("--output", output)


def check_weights(args: argparse.Namespace, models: Sequence[str]) -> None:
    """Raise UsageError if --weights is given but none of `models` takes weights."""
    if args.weights == "default":
        return
    from multi_dnn_ros.models.registry import MODEL_SOURCES, source_of

    if not any(source.takes_weights for model in models if (source := source_of(model)) is not None):
        forms = ", ".join(source.form for source in MODEL_SOURCES.usable() if source.takes_weights)
        raise UsageError(f"--weights is for {forms}; {', '.join(models)} comes with its own weights")


def add_target(parser: argparse._ActionsContainer, *, int8: bool = False) -> None:
    """How networks are timed: --backend, --precision, --sms. int8: whether the command calibrates it."""
    add = parser.add_argument
    add("--backend", default="auto", metavar="NAME",
        help=f"backend that the node will use: {BACKEND_NAMES} (default: %(default)s)")  # fmt: skip
    add("--precision", choices=[name for name in PRECISIONS if int8 or name != "int8"], default="auto",
        help="precision that the node will use (default: %(default)s)")  # fmt: skip
    add("--sms", type=positive, metavar="N",
        help="use only N SMs of the GPU, by a CUDA green context (default: all)")  # fmt: skip


def check_backend(args: argparse.Namespace) -> None:
    """Raise UsageError unless --backend names a backend."""
    known = extensions.names(extensions.BACKENDS)
    if args.backend != "auto" and args.backend not in known:
        raise UsageError(f"--backend is '{args.backend}'; allowed: auto, {', '.join(known)}")


def read_target(
    args: argparse.Namespace, batch: int = 1, calibration: Callable[[], Sequence[Tensors]] | None = None
) -> Target:
    """What networks are timed on: --device, --sms, --backend and --precision.

    calibration: makes the inputs on which int8 is calibrated; needed only for that precision.
    """
    from multi_dnn_ros.benchmark.paper.dnns import check_partition
    from multi_dnn_ros.pipeline import choices
    from multi_dnn_ros.planning.timing import Target

    check_backend(args)
    device = choices.choose_device(args.device, "--device is")
    name = choices.check_backend(
        args.backend, device, args.precision, backend_from="--backend", precision_from="--precision"
    )
    check_partition(device, args.sms)

    def make_backend() -> Backend:
        return choices.choose_backend(args.backend, device, args.precision, calibration=calibration)

    return Target(device, name, make_backend, args.precision, batch, sms=args.sms or 0)


def calibration_inputs(network: Trainable, folder: str) -> list[Tensors]:
    """The arguments of `network.network` for each image of a folder, as for scoring; empty: the package's images."""
    from multi_dnn_ros.pipeline.calibration import calibration_images
    from multi_dnn_ros.training.samples import framed

    return [network.input_of(framed(image.numpy(), network.framing)) for image in calibration_images(folder)]


def instances(args: argparse.Namespace, target: Target) -> int:
    """Number of copies that run at once when contention is timed."""
    return 8 if target.device.type == "cuda" else 2
