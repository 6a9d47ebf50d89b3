"""Options that many commands share, for parameter file, device, seed and files to write; reads and checks them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural
from multi_dnn_ros.common.atomic_files import is_stream
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.forms import DEVICE_FORMS

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

#: Devices of commands without a parameter file; unlike DEVICE_FORMS they do not set the number of CPU threads.
DEVICES = "auto, cpu, cuda, cuda:<number>"


def add_params_file(parser: argparse._ActionsContainer) -> None:
    """--params-file."""
    parser.add_argument(
        "--params-file", type=Path, metavar="YAML",
        help="parameters of the node: DNNs and cameras (default: the package's config/multi_dnn.yaml)",
    )  # fmt: skip


def add_device(parser: argparse._ActionsContainer, default: str | None = "auto") -> None:
    """--device. default: None if the parameter file sets the device; the option then takes the values of `device`."""
    allowed, default_text = DEVICES, "%(default)s"
    if default is None:
        allowed, default_text = DEVICE_FORMS, "parameter `device` of the parameter file"
    parser.add_argument("--device", default=default, metavar="NAME", help=f"{allowed} (default: {default_text})")


def check_node(name: str) -> None:
    """Raise UsageError unless `name` is the full name of a node, such as /robot/multi_dnn."""
    if not re.fullmatch(r"(/[A-Za-z_]\w*)+", name, re.ASCII):
        raise UsageError(
            f"--node is '{name}'; expected a full name such as /multi_dnn, with parts of letters, digits and _"
        )


def add_seed(parser: argparse._ActionsContainer, what: str) -> None:
    """--seed. what: what is random."""
    parser.add_argument(
        "--seed", type=natural, default=0, metavar="N", help=f"random seed of {what} (default: %(default)s)"
    )


def add_output(parser: argparse._ActionsContainer, what: str = "write the figures to this JSON file") -> None:
    """--output, a JSON file."""
    parser.add_argument("--output", type=Path, metavar="JSON", help=what)


def read_config(args: argparse.Namespace, node: str | None = None, **changes: Any) -> NodeConfig:
    """The parameters of --params-file, with --device and `changes` in place of its values.

    node: fully qualified name of the node whose section of the file is used. changes: see with_options. Raises
    ParameterError, OSError, and UsageError for an option whose value is not allowed.
    """
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.options import with_options
    from multi_dnn_ros.settings.params_file import read_params_file

    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"), *([node] if node is not None else []))
    if getattr(args, "device", None) is not None:
        changes["device"] = args.device
    return with_options(config, **changes) if changes else config


def check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the file `path` cannot be written. Call it before the work begins, not hours later."""
    if path.is_dir():
        raise UsageError(f"{option} is {path}, which is a folder; expected a file")
    if is_stream(path) and os.access(path, os.W_OK):
        return
    folder = next(parent for parent in path.absolute().parents if parent.exists())  # missing folders are created
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} is {path}: {folder} is not a writable folder")


def picture_beside(output: Path) -> Path:
    """The .png file beside the .json file of --output. Raises UsageError if --output does not end in .json, or if one
    of the two cannot be written.
    """
    if output.suffix != ".json":
        raise UsageError(f"--output is {output}; expected a .json file, as a .png file is written beside it")
    picture = output.with_suffix(".png")
    for path in (output, picture):
        check_writable("--output", path)
    return picture


def check_files(args: argparse.Namespace, *options: str) -> None:
    """Before a command begins, check that it can write its files. options: their names, such as `output`.

    Raises UsageError for a file that cannot be written.
    """
    for option in options:
        path = getattr(args, option, None)
        if path is not None:
            check_writable(f"--{option}", path)


def write_figures(path: Path | None, figures: dict[str, Any], **first: Any) -> None:
    """Write `first`, the provenance and `figures`, in this order, to the JSON file of --output, if it was given, and
    name the file on stdout.
    """
    save_figures(path, figures, **first)
    if path is not None:
        print(f"written to {path}")


def save_figures(path: Path | None, figures: dict[str, Any], **first: Any) -> None:
    """As :func:`write_figures`, without naming the file; for figures that are written more than once."""
    from multi_dnn_ros.common.reporting import provenance, write_json

    if path is not None:
        write_json(path, {**first, **provenance(), **figures})


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of one form, as a JSON file has them, as a Markdown table: numbers with three digits, None as a dash."""
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.planning.fit import three_digits

    def text(value: Any) -> str:
        if value is None or value == () or value == []:
            return "-"
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {text(each)}" for name, each in value.items()) or "-"
        if isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
        return three_digits(value) if isinstance(value, float) else str(value)

    if not rows:
        return ""
    return table(
        [name.replace("_", " ") for name in rows[0]], [[text(value) for value in row.values()] for row in rows]
    )
