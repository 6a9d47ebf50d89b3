"""The schema as flat ROS parameters: the name, type, default and limits of each. Nothing here needs ROS.

ROS parameters are not nested, so the topic of a camera is the parameter ``camera.<camera>.topic``, and the arrays
``cameras`` and ``dnns`` list the names that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from multi_dnn_ros.settings.forms import path_problem
from multi_dnn_ros.settings.roles import PRESETS
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig, OutputConfig
from multi_dnn_ros.settings.section import mark

#: Cameras and DNNs of a node without parameters.
DEFAULT_CAMERAS = ("front",)
DEFAULT_DNNS = tuple(PRESETS)
#: First part of a parameter's name -> model of the section, and name of the list of its members.
SECTIONS: Mapping[str, type[BaseModel]] = {"camera": CameraConfig, "dnn": DnnConfig}
LISTS: Mapping[str, str] = {"camera": "cameras", "dnn": "dnns"}
#: List of the results of a DNN; their parameters are those of OutputConfig, below ``dnn.<dnn>.output.<output>``.
OUTPUTS = "outputs"

_NAME_RULE = "lower-case letters, digits and _, starting with a letter, at most 64 characters"
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, str_strip_whitespace=True)
_KINDS = {"boolean": "bool", "integer": "int", "number": "float", "string": "string"}


class ParameterError(ValueError):
    """Invalid parameters. problems: one line for each, with its name, value and what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class ParameterField:
    """One parameter as the schema describes it.

    kind: bool, int, float, string, string[] or float[]. runtime: may change at any time, without a swap.
    allowed: in words, for error messages and docs/parameters.md.
    """

    kind: str
    default: Any
    allowed: str
    description: str
    runtime: bool
    minimum: float | None
    maximum: float | None
    adapter: TypeAdapter[Any]

    def checked(self, name: str, value: Any) -> Any:
        """`value` in the type of the field, with int converted to float if needed. Raises ParameterError."""
        if self.kind.endswith("[]") and isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            value = list(value)  # tuples and array.array
        try:
            if self.kind.startswith("float"):
                value = [*map(_as_float, value)] if isinstance(value, list) else _as_float(value)
            return self.adapter.validate_python(value)
        except (ValidationError, OverflowError):  # a whole number in a parameter file may be too large for a float
            raise ParameterError([f"parameter {name} is {shown(value)}; allowed: {self.allowed}"]) from None


def _as_float(value: Any) -> Any:
    """A whole number as a float, anything else unchanged. Raises OverflowError."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def shown(value: object) -> str:
    """A value for a message: as in YAML, at most 120 characters."""
    text = {"True": "true", "False": "false", "None": "not set"}.get(repr(value), repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."


@lru_cache(maxsize=8)
def fields_of(model: type[BaseModel]) -> Mapping[str, ParameterField]:
    """The fields of one section of the schema that are parameters, by name, in the order of the schema."""
    properties = model.model_json_schema()["properties"]
    found = {}
    for name, info in model.model_fields.items():
        if is_name_list(f"dnn.x.{name}" if model is DnnConfig else name):
            if name == OUTPUTS:
                found[name] = list_field(name, ())
        elif not info.exclude:
            constrained: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            found[name] = _field(properties[name], TypeAdapter(constrained, config=_STRICT))
    return found


def _field(schema: Mapping[str, Any], adapter: TypeAdapter[Any]) -> ParameterField:
    is_list = schema["type"] == "array"
    kind = f"{_KINDS[schema['items']['type']]}[]" if is_list else _KINDS[schema["type"]]
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if "allowed" in schema:
        allowed = schema["allowed"]
    elif "enum" in schema:
        allowed = ", ".join(schema["enum"])
    elif "exclusiveMinimum" in schema:
        allowed = f"{kind}, more than {low:g}, up to {high:.10g}"
    elif low is not None:
        allowed = f"{kind}, {low:.10g} to {high:.10g}"
    else:
        words = {"bool": "true, false", "string[]": "list of strings", "float[]": "list of finite numbers"}
        allowed = words.get(kind, "any string")
    default = schema.get("default", [] if is_list else "")
    runtime = bool(schema.get("runtime", False))
    return ParameterField(kind, default, allowed, schema["description"], runtime, low, high, adapter)


def parameter_fields(
    cameras: Iterable[str], dnns: Iterable[str], outputs: Mapping[str, Sequence[str]] | None = None
) -> dict[str, ParameterField]:
    """Every parameter of a node with these cameras and DNNs, by its ROS name. outputs: names of the results by DNN.

    A DNN named after a role with defaults has that role, and the model of that role, by default.
    """
    lists = {"cameras": list_field("cameras", DEFAULT_CAMERAS), "dnns": list_field("dnns", DEFAULT_DNNS)}
    fields = {**lists, **fields_of(NodeConfig)}
    for camera in cameras:
        fields.update({f"camera.{camera}.{name}": field for name, field in fields_of(CameraConfig).items()})
    for dnn in dnns:
        presets = {"role": dnn, "model": PRESETS[dnn].model} if dnn in PRESETS else {"role": "", "model": ""}
        for name, field in fields_of(DnnConfig).items():
            fields[f"dnn.{dnn}.{name}"] = replace(field, default=presets[name]) if name in presets else field
        for output in (outputs or {}).get(dnn, ()):
            prefix = f"dnn.{dnn}.output.{output}"
            fields.update({f"{prefix}.{name}": field for name, field in fields_of(OutputConfig).items()})
    return fields


def list_field(name: str, default: tuple[str, ...]) -> ParameterField:
    """The field of `cameras`, `dnns` or a DNN's `outputs`, which are lists of names in ROS."""
    model: type[BaseModel] = DnnConfig if name == OUTPUTS else NodeConfig
    allowed = f"{'names' if name == OUTPUTS else 'at least one name'}, all different: {_NAME_RULE}"
    description = model.model_fields[name].description or ""
    adapter: TypeAdapter[Any] = TypeAdapter(list[str], config=_STRICT)
    return ParameterField("string[]", list(default), allowed, description, False, None, None, adapter)


def is_name_list(name: str) -> bool:
    """Whether the parameter lists names that have parameters of their own: `cameras`, `dnns`, `dnn.<dnn>.outputs`."""
    return name in LISTS.values() or re.fullmatch(r"dnn\.\w+\.outputs", name) is not None


def checked_names(name: str, value: Any) -> tuple[str, ...]:
    """The entries of a parameter that lists names. Raises ParameterError for an invalid or repeated entry."""
    kind = name.rpartition(".")[2]
    field = list_field(kind, ())
    names = field.checked(name, value)
    problems = [
        f"parameter {name} has the entry {shown(entry)}; allowed: {_NAME_RULE}"
        for entry in names
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", entry)
    ]
    problems += [
        f"parameter {name} has the entry {shown(entry)} twice; each {kind[:-1]} needs a name of its own"
        for entry in dict.fromkeys(entry for entry in names if names.count(entry) > 1)
    ]
    if not names and kind != OUTPUTS:
        problems = [f"parameter {name} is []; allowed: {field.allowed}"]
    if problems:
        raise ParameterError(problems)
    return tuple(names)


def initial_value(name: str, field: ParameterField, given: Mapping[str, Any]) -> Any:
    """The value given for a parameter, otherwise its default. The default model of a DNN is that of its role.

    ROS passes an empty list in a parameter file as a parameter without a value.
    """
    value = given.get(name, field.default)
    if value is None and field.kind.endswith("[]"):
        return []
    if value == "" and name.startswith("dnn.") and name.endswith(".model"):
        role = str(given.get(f"{name.removesuffix('.model')}.role"))
        return PRESETS[role].model if role in PRESETS else value
    return value


def is_swappable(name: str) -> bool:
    """Whether the parameter of this ROS name belongs to a DNN and can change by a swap of its engine process
    (docs/isolation.md); also true for its runtime parameters, which need no swap.
    """
    return name.startswith("dnn.") and not _mark(name, "fixed")


def missing_file(name: str, value: Any) -> str:
    """The problem if the parameter names a file or folder that does not exist, otherwise an empty string."""
    problem = ""
    if isinstance(value, str) and value:
        if _mark(name, "folder"):
            problem = path_problem(value, "folder")
        elif ":" not in value and Path(value).suffix.lower() in (_mark(name, "file_suffixes") or ()):
            problem = path_problem(value, "file")
    return f"parameter {name} is {shown(value)}: {problem}" if problem else ""


def _mark(name: str, key: str) -> Any:
    """See :func:`multi_dnn_ros.settings.section.mark`; name: of a parameter of a DNN, otherwise None."""
    match = re.fullmatch(r"dnn\.[\w<>]+\.(output\.[\w<>]+\.)?(\w+)", name)
    return mark(OutputConfig if match[1] else DnnConfig, match[2], key) if match is not None else None
