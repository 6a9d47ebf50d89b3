"""Forms of values in parameters, options and files. Without pydantic, so that the help of commands needs no schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from multi_dnn_ros.common import extensions

#: Syntax of a device; :func:`multi_dnn_ros.planning.units.parse_unit` reads all of them but auto.
DEVICE = r"^(auto|cpu(:[1-9][0-9]{0,3})?|cuda(:[0-9]{1,3})?)$"
#: What is allowed, in words.
DEVICE_FORMS = "auto, cpu, cpu:<threads>, cuda, cuda:<number>"
#: Values of the parameter `dnn.<dnn>.precision`; :data:`multi_dnn_ros.backends.precision.PRECISIONS` says what each is.
PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16", "int8")
#: Values of --precision of the commands that train.
TRAINING_PRECISIONS = ("fp32", "bf16")
#: What is allowed for the size of an image, in words.
SIZE_FORM = "a size such as 640x480 (1 to 16384 pixels each)"
_LARGEST = 16384


class ParameterError(ValueError):
    """Invalid parameters, or a parameter file without parameters for a node.

    problems: one line for each, with the name of the file or parameter, the value and what is allowed.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def shown(value: object) -> str:
    """A value for a message: as in YAML, at most 120 characters."""
    text = {"True": "true", "False": "false", "None": "not set"}.get(repr(value), repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."


@dataclass(frozen=True)
class RolePreset:
    """Defaults of a role, the label for the purpose of a DNN.

    model: used if parameter `model` is not set. decoder: used for a model that does not define one, such as an .onnx
    file; empty: the parameter `decoder` must be set. result_kind: the kind of results that the decoder must produce.
    score_threshold: used for a model that does not define one, 0..1.
    """

    model: str
    decoder: str
    result_kind: str
    score_threshold: float = 0.4


#: All roles with defaults; any other role is only a label.
PRESETS: Mapping[str, RolePreset] = {
    "lane": RolePreset("builtin:lane", "lane", "lanes"),
    "object": RolePreset("builtin:object", "", "detections"),
    "pedestrian": RolePreset("builtin:pedestrian", "", "detections"),
}


def model_forms() -> tuple[str, ...]:
    """How a model can be given, by model source: `builtin:<name>`, or `an .onnx file`."""
    sources = extensions.names(extensions.MODEL_SOURCES)
    articles = {name: "an" if name[1:2] in tuple("aeio") else "a" for name in sources}
    return tuple(f"{a} {name} file" if name.startswith(".") else f"{name}:<name>" for name, a in articles.items())


def parse_size(text: str) -> tuple[int, int]:
    """(width, height) in pixels from `text`, WIDTHxHEIGHT. Raises ValueError, which says what is allowed."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    if not match or not all(1 <= int(side) <= _LARGEST for side in match.groups()):
        raise ValueError(f"expected {SIZE_FORM}")
    return int(match[1]), int(match[2])


def path_problem(path: str, kind: Literal["file", "folder"]) -> str:
    """Why `path`, which may begin with ~ or ~user, is not an existing file or folder; empty if it is."""
    try:
        found = Path(path).expanduser()
        if found.is_file() if kind == "file" else found.is_dir():
            return ""
    except RuntimeError:
        return "the home folder of this user is not known"
    except OSError as error:  # such as a name that is too long, or a folder that may not be searched
        return f"the {kind} cannot be found: {error.strerror}"
    return f"there is no such {kind}"
