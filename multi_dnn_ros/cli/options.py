"""Declares commands, the options and types of arguments that they share, and checks of the files that they write.

The types raise ArgumentTypeError, to which argparse adds the option.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.atomic_files import is_stream
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.settings.forms import DEVICE, DEVICE_FORMS, PRECISIONS, SIZE_FORM, model_forms, parse_size

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

T = TypeVar("T")
Commands = argparse._SubParsersAction  # what add_subparsers returns; argparse has no public name for it


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal's width; paragraphs with an indented line stay as they are written.

    Words are not broken at hyphens, so that options and commands can be copied.
    """

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 30, **options})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", text.strip("\n"))
        return "\n\n".join(
            paragraph if re.search(r"^\s", paragraph, re.M) else "\n".join(self._split_lines(paragraph, width))
            for paragraph in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, text: str | None,
    run: Callable[[argparse.Namespace], int] | None = None, **defaults: Any,
) -> argparse.ArgumentParser:  # fmt: skip
    """Declare the command `name` and return its parser.

    text: its help: a sentence that begins with a verb, which the list of commands shows too, then what to know before
    using it, and below a line `examples:` one command per line. run: does the work and returns the exit code; None for
    a command that has subcommands. defaults: as for set_defaults.
    """
    body, _, examples = inspect.cleandoc(text or "").partition("examples:\n")
    summary = body.partition("\n\n")[0].rstrip(".\n")
    parser = commands.add_parser(
        name,
        help=f"{summary[0].lower()}{summary[1:]}",
        description=body.strip(),
        epilog=f"examples:\n{textwrap.indent(textwrap.dedent(examples).rstrip(), '  ')}",
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(parser=parser, run=run, **defaults)
    return parser


def add_subcommands(parser: argparse.ArgumentParser, noun: str) -> Commands[argparse.ArgumentParser]:
    """Give `parser` subcommands; `noun` (singular) names them in the help, as in ``multi-dnn profile ACTION``."""
    return parser.add_subparsers(title=f"{noun}s", dest=noun, metavar=noun.upper(), required=True)


def typed(convert: Callable[[str], T], allowed: Callable[[T], object], what: str) -> Callable[[str], T]:
    """A type of arguments: text that `convert` can read to a value that is allowed; other text is not `what`."""

    def read(text: str) -> T:
        try:
            if allowed(value := convert(text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"'{text}' is not {what}")

    return read


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    return typed(str, re.compile(pattern, re.ASCII).fullmatch, what)


def _integer(minimum: int) -> Callable[[str], int]:
    allowed = f"an integer of at least {minimum} and at most 18 digits"
    return typed(int, lambda value: minimum <= value < 10**18, allowed)


def number(allowed: Callable[[float], bool], requirement: str) -> Callable[[str], float]:
    """The type of a number. requirement: what is allowed, in words."""
    return typed(float, allowed, f"a number {requirement}")


def assignment(separator: str, form: str, value: Callable[[str], T]) -> Callable[[str], tuple[str, T]]:
    """The type of an argument of this form, such as CAMERA=HZ: the name and the value."""

    def read(text: str) -> tuple[str, T]:
        name, found, given = text.partition(separator)
        if not (name and found and given):
            raise argparse.ArgumentTypeError(f"'{text}' is not {form}")
        return name, value(given)

    return read


size = typed(parse_size, bool, SIZE_FORM)
device = _matching(DEVICE, f"one of {DEVICE_FORMS}")
camera_name = _matching(
    r"[a-z][a-z0-9_]{0,63}", "a camera name (lower-case letters, digits and _; the first is a letter; at most 64)"
)
topic_name = _matching(
    r"(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*",
    "a topic name (parts of letters, digits and _, none of which begins with a digit, separated by /)",
)
absolute_name = _matching(r"(/[A-Za-z_]\w*)+", "a full name such as /multi_dnn, with parts of letters, digits and _")
natural = _integer(0)
positive = _integer(1)
positive_float = number(lambda value: 0.0 < value < 1e9, "above 0 and below 1e9")
not_negative = number(lambda value: 0.0 <= value < 1e6, "of at least 0 and below 1e6")
fraction = number(lambda value: 0.0 <= value <= 1.0, "from 0 to 1")
positive_fraction = number(lambda value: 0.0 < value <= 1.0, "above 0 and up to 1")

#: Values of --backend, and what an argument that names a network can be.
BACKEND_NAMES = ", ".join(("auto", *extensions.names(extensions.BACKENDS)))
MODEL_HELP = ", ".join(model_forms())
_DECODERS = ("auto", "classification", *extensions.names(extensions.DECODERS))

#: Arguments that several commands have, as for add_argument; :func:`add_options` declares them.
SHARED: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": f"network: {MODEL_HELP}"},
    "models": {"metavar": "MODEL", "nargs": "+", "help": f"networks: {MODEL_HELP}"},
    "--params-file": {
        "type": Path, "metavar": "YAML",
        "help": "parameters of the node: DNNs and cameras (default: the package's config/multi_dnn.yaml)",
    },
    "--node": {
        "type": absolute_name, "metavar": "NAME", "default": "/multi_dnn",
        "help": "full name of the node: of its section of the parameter file, and in topics (default: %(default)s)",
    },
    "--device": {
        "metavar": "NAME", "default": "auto", "help": "auto, cpu, cuda, cuda:<number> (default: %(default)s)",
    },
    "--size": {"type": size, "metavar": "WxH", "help": "input size in pixels (default: the model's own)"},
    "--seed": {"type": natural, "default": 0, "metavar": "N", "help": "random seed (default: %(default)s)"},
    "--repeats": {
        "type": positive, "metavar": "N", "help": "repeats, of which medians are reported (default: %(default)s)",
    },
    "--batch": {"type": positive, "metavar": "N", "help": "images per inference (default: %(default)s)"},
    "--batch-size": {"type": positive, "default": 64, "metavar": "N", "help": "images at once (default: %(default)s)"},
    "--output": {"type": Path, "metavar": "JSON", "help": "write the figures to this JSON file"},
    "--report": {"type": Path, "metavar": "DIR", "help": "folder to write a JSON file to, with all figures"},
    "--weights": {
        "default": "default", "metavar": "WEIGHTS",
        "help": "weights of a torchvision network, required for such a network: a file, a name such as COCO_V1, or "
        "random; other models contain their weights (default: those)",
    },
    "--num-classes": {
        "type": natural, "default": 0, "metavar": "N",
        "help": "classes of a torchvision network (default: those of its weights)",
    },
    "--decoder": {
        "choices": _DECODERS, "default": "auto", "metavar": "NAME",
        "help": f"decoder of the outputs: {', '.join(_DECODERS)} (default: %(default)s, the model's own, otherwise "
        "the one that reads outputs of these shapes)",
    },
    "--labels": {
        "nargs": "+", "default": [], "metavar": "NAME",
        "help": "class names in the order of their numbers (default: the model's, or the data's)",
    },
    "--data": {
        "action": "append", "required": True, "metavar": "KIND:PATH", "help": "data, see above; may be repeated",
    },
    "--scenes": {
        "type": positive, "default": 6000, "metavar": "N",
        "help": "for data `road`: number of training images to render (default: %(default)s)",
    },
    "--backend": {
        "default": "auto", "metavar": "NAME",
        "help": f"backend that the node will use: {BACKEND_NAMES} (default: %(default)s)",
    },
    "--precision": {
        "choices": [name for name in PRECISIONS if name != "int8"], "default": "auto",
        "help": "precision that the node will use (default: %(default)s)",
    },
    "--sms": {
        "type": positive, "metavar": "N",
        "help": "use only N SMs of the GPU, by a CUDA green context (default: all)",
    },
}  # fmt: skip
#: The options by which a network is loaded, and those that also say how its outputs are decoded.
LOADING = ("--weights", "--num-classes", "--size")
NETWORK = (*LOADING, "--decoder", "--labels")
#: Of commands whose parameter file names the device: the values of parameter `device`.
CONFIGURED_DEVICE = {
    "type": device, "default": None,
    "help": f"{DEVICE_FORMS} (default: parameter `device` of the parameter file)",
}  # fmt: skip


def add_options(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Declare arguments of SHARED. changes: arguments of add_argument that replace those of the table."""
    for name in names:
        parser.add_argument(name, **{**SHARED[name], **changes})


def read_config(args: argparse.Namespace) -> NodeConfig:
    """The parameters of --params-file in the section of --node, with --device in place of its device.

    Raises ParameterError and OSError.
    """
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.params_file import read_params_file

    file = args.params_file or config_file("multi_dnn.yaml")
    config = read_params_file(file, getattr(args, "node", "/multi_dnn"))
    chosen = getattr(args, "device", None)
    return config if chosen is None else config.model_copy(update={"device": chosen})


def check_outputs(args: argparse.Namespace) -> None:
    """Raise UsageError if a file or folder (metavar DIR) of an option for output cannot be written, before the work
    begins, not hours later.
    """
    for action in args.parser._actions:
        path: Path | None = getattr(args, action.dest, None)
        if action.dest in ("output", "report", "json", "checkpoint") and isinstance(path, Path):
            check_writable(action.option_strings[0], path, is_folder=action.metavar == "DIR")


def check_writable(option: str, path: Path, *, is_folder: bool = False) -> None:
    """Raise UsageError if the file or folder `path` cannot be written."""
    if is_stream(path) and os.access(path, os.W_OK):
        return
    if path.exists() and path.is_dir() is not is_folder:
        found, expected = ("file", "folder") if is_folder else ("folder", "file")
        raise UsageError(f"{option} is {path}, which is a {found}; expected a {expected}")
    folder = next(parent for parent in path.absolute().parents if parent.exists())  # missing folders are created
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{option} is {path}: {folder} is not a writable folder")


def picture_beside(output: Path) -> Path:
    """The .png file beside the .json file of --output. Raises UsageError if --output does not end in .json, or if the
    picture cannot be written.
    """
    if output.suffix != ".json":
        raise UsageError(f"--output is {output}; expected a .json file, as a .png file is written beside it")
    check_writable("--output", picture := output.with_suffix(".png"))
    return picture
