"""What the offline commands do with the options that name networks, data and what a network is timed on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.options import BACKEND_NAMES, MODEL_HELP
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.training.data_kinds import help_text, kind_and_path

if TYPE_CHECKING:
    from torch import nn

    from multi_dnn_ros.backends import Backend, Tensors
    from multi_dnn_ros.models.dnn import Source
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.training.data import Data
    from multi_dnn_ros.training.trainable import Trainable

DATA_HELP = f"""\
data (KIND:PATH):
{help_text()}

Without DIR/test/, the val part is the test part, and images for choosing the best epoch are held out of train: 5 %, at
least 50, and whole recordings (NAME of NAME_<frame>.jpg) if there are several.
"""


def check_files(args: argparse.Namespace, data: Sequence[str] = ()) -> None:
    """Raise CommandError or DatasetError unless the files of MODEL, --teacher, --weights and of data KIND:PATH exist,
    and each model has the form of one. It does not import PyTorch, so that they are reported at once.
    """
    from multi_dnn_ros.models.registry import source_name

    for model in _models(args):
        form = source_name(model)
        if not form:
            raise CommandError(f"argument MODEL is '{model}'; allowed: {MODEL_HELP}")
        if form.startswith(".") and not Path(model).is_file():
            raise CommandError(f"argument MODEL is '{model}': there is no such file")
    weights = getattr(args, "weights", "")
    if Path(weights).suffix and not Path(weights).is_file():
        raise CommandError(f"--weights is '{weights}': there is no such file")
    for name in data:
        kind_and_path(name)


def _models(args: argparse.Namespace) -> list[str]:
    """The networks that a command line names."""
    teacher = getattr(args, "teacher", None)
    return [*(getattr(args, "models", None) or [args.model]), *([teacher] if teacher else [])]


def takes_weights(model: str) -> bool:
    """Whether the model takes --weights; others come with their own."""
    from multi_dnn_ros.models.registry import source_of

    found = source_of(model)
    return found is not None and found.takes_weights


def check_weights(args: argparse.Namespace) -> None:
    """Raise UsageError if --weights is given but none of the models takes weights."""
    models = _models(args)
    if args.weights != "default" and not any(map(takes_weights, models)):
        from multi_dnn_ros.models.registry import MODEL_SOURCES

        forms = ", ".join(source.form for source in MODEL_SOURCES.usable() if source.takes_weights)
        raise UsageError(f"--weights is for {forms}; {', '.join(models)} comes with its own weights")


def read_trainable(args: argparse.Namespace, model: str, *, smoothing: float = 0.1) -> Trainable:
    """The network `model`, loaded with the options NETWORK."""
    from multi_dnn_ros.models.sources import load_network
    from multi_dnn_ros.training.trainable import make_trainable

    weights, classes = (args.weights, args.num_classes) if takes_weights(model) else ("default", 0)
    source = load_network(model, weights=weights, num_classes=classes, size=args.size)
    return make_trainable(
        source, model, size=args.size, decoder=args.decoder, labels=args.labels, smoothing=smoothing,
        report=partial(print, file=sys.stderr),
    )  # fmt: skip


def read_data(args: argparse.Namespace, network: Trainable) -> list[Data]:
    """The data sets of --data, for a network."""
    from multi_dnn_ros.training.data import open_data

    return [open_data(name, network.task, network.framing, network.labels, args.scenes) for name in args.data]


def check_suffix(output: Path, model: str, source: Source) -> None:
    """Raise UsageError unless --output has the suffix that the artifact of this network needs."""
    from multi_dnn_ros.models.artifact import suffix_of

    suffix = suffix_of(_origin(model, source))
    if output.suffix != suffix:
        raise UsageError(f"--output is {output}; expected a {suffix} file for a network made from {model}")


def _origin(model: str, source: Source) -> str:
    """What an artifact records as its network: a name such as builtin:object, or the name of a file."""
    from multi_dnn_ros.models.artifact import is_built_from_a_name

    if source.description is not None:
        return source.description.model
    return model if is_built_from_a_name(model) else Path(model).name


def write_artifact(
    args: argparse.Namespace, source: Source, module: nn.Module, size: tuple[int, int], labels: Sequence[str],
    plan: Mapping[str, Any], about: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write the network to --output, with what it was made from. about: what else the artifact tells of its making."""
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.models.artifact import Description, save_artifact

    before = source.description
    made_from = {"model": args.model, "weights": args.weights, **about.get("source", {})}
    if before is not None:
        made_from["provenance"] = before.provenance
    description = Description(
        model=_origin(args.model, source),
        num_classes=(before.num_classes if before is not None else 0) or args.num_classes,
        input_size=size,
        labels=tuple(labels),
        plan=dict(plan),
        provenance={**provenance(), **about, "source": made_from},
        **source.own_interface,
    )
    save_artifact(args.output, module, description)


def read_target(args: argparse.Namespace, calibration: Callable[[], Sequence[Tensors]] | None = None) -> Target:
    """What networks are timed on: --device, --backend, --precision and, if the command has them, --sms, --batch and
    --repeats.

    calibration: makes the inputs on which int8 is calibrated; needed only for that precision.
    """
    from multi_dnn_ros.benchmark.paper.dnns import check_partition
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.serving import choices

    if args.backend not in ("auto", *extensions.names(extensions.BACKENDS)):
        raise UsageError(f"--backend is '{args.backend}'; allowed: {BACKEND_NAMES}")
    device = choices.choose_device(args.device, "--device is")
    name = choices.check_backend(args.backend, device, args.precision, given="--")
    check_partition(device, sms := getattr(args, "sms", None))

    def make_backend() -> Backend:
        return choices.choose_backend(args.backend, device, args.precision, calibration=calibration)

    target = Target(device, name, make_backend, args.precision, getattr(args, "batch", 1), sms=sms or 0)
    return replace(target, rounds=args.repeats) if hasattr(args, "repeats") else target


def calibration_inputs(network: Trainable, folder: str = "") -> list[Tensors]:
    """The arguments of `network.network` for each image of a folder, as for scoring; empty: the package's images."""
    from multi_dnn_ros.serving.sample_images import sample_images
    from multi_dnn_ros.training.samples import framed

    return [network.input_of(framed(image, network.framing)) for _, image in sample_images(folder)]


def copies(target: Target) -> tuple[int, int]:
    """Numbers of copies of a network that are timed at once."""
    return 1, 8 if target.device.type == "cuda" else 2
