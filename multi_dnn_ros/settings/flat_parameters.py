"""ROS parameters, which are flat, and the nested configuration of the schema. Nothing here needs ROS.

The topic of a camera is the parameter ``camera.<camera>.topic``; the arrays ``cameras``, ``dnns`` and
``dnn.<dnn>.outputs`` list the names that exist.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from multi_dnn_ros.settings.dnn_schema import DnnConfig, Name, OutputConfig
from multi_dnn_ros.settings.forms import PRESETS, ParameterError, path_problem, shown
from multi_dnn_ros.settings.schema import CameraConfig, NodeConfig

#: Names of a node without parameters.
DEFAULT_NAMES = {"cameras": ("front",), "dnns": tuple(PRESETS)}
#: Parameters of a DNN that have no effect if it has outputs, which have these parameters themselves.
REPLACED_BY_OUTPUTS = ("decoder", "keep", "score_threshold", "iou_threshold", "max_detections")
#: A part of a parameter's name -> the list of its members in the schema.
_LISTS = {"camera": "cameras", "dnn": "dnns", "output": "outputs"}
#: Parameters that rclpy reads itself, and the prefix of others.
_RCLPY = ("use_sim_time", "start_type_description_service")
_RCLPY_PREFIX = "qos_overrides."
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, str_strip_whitespace=True)
_KINDS = {"boolean": "bool", "integer": "int", "number": "float", "string": "string"}


@dataclass(frozen=True)
class ParameterField:
    """One parameter as the schema describes it.

    kind: bool, int, float, string, string[] or float[]. allowed: in words. marks: see
    :mod:`multi_dnn_ros.settings.dnn_schema`. change: when the parameter can change: "runtime": at any time. "swap": by
    another engine process while the node is configured. "unconfigured": only then. "start": never, because it lists
    names that have parameters of their own.
    """

    kind: str
    default: Any
    allowed: str
    description: str
    marks: Mapping[str, Any]
    change: str
    adapter: TypeAdapter[Any]

    def checked(self, name: str, value: Any) -> Any:
        """`value` in the type of the field. Raises ParameterError."""
        if self.kind.endswith("[]"):
            if value is None:  # an empty list in a parameter file is a parameter without a value in ROS
                value = []
            elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
                value = list(value)  # tuples and array.array
        try:
            return self.adapter.validate_python(value)
        except ValidationError:
            raise ParameterError([f"parameter {name} is {shown(value)}; allowed: {self.allowed}"]) from None

    def missing_file(self, name: str, value: Any) -> str:
        """The problem if the value names a file or folder that does not exist, otherwise an empty string."""
        problem = ""
        if isinstance(value, str) and value:
            if self.marks.get("folder"):
                problem = path_problem(value, "folder")
            elif ":" not in value and Path(value).suffix.lower() in self.marks.get("file_suffixes", ()):
                problem = path_problem(value, "file")
        return f"parameter {name} is {shown(value)}: {problem}" if problem else ""


@lru_cache(maxsize=8)
def fields_of(section: type[BaseModel]) -> Mapping[str, ParameterField]:
    """The parameters of one section of the schema, by name, in the order of the schema."""
    properties = section.model_json_schema()["properties"]
    found = {}
    for name, info in section.model_fields.items():
        if info.exclude:
            continue
        schema, annotation = properties[name], cast("Any", info.annotation)
        kind = _KINDS.get(schema["type"], "")
        if schema["type"] == "array":
            kind = f"{_KINDS[schema['items']['type']]}[]"
        elif schema["type"] == "object":
            kind, annotation = "string[]", Annotated[list[Name], AfterValidator(_checked_names)]
        marks = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        change = marks.get("change", "swap" if section in (DnnConfig, OutputConfig) else "unconfigured")
        adapter = TypeAdapter(Annotated[(annotation, *info.metadata)] if info.metadata else annotation, config=_STRICT)
        default, text = schema.get("default", [] if kind.endswith("[]") else ""), info.description or ""
        found[name] = ParameterField(kind, default, _allowed(kind, schema), text, marks, str(change), adapter)
    return found


def _checked_names(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("a name is given twice")
    return names


def _allowed(kind: str, schema: Mapping[str, Any]) -> str:
    """What is allowed, in words."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']:.10g} to {schema['maximum']:.10g}"
    words = {"bool": "true, false", "string[]": "list of strings", "float[]": "list of finite numbers"}
    return words.get(kind, "any string")


def runtime_fields(section: type[BaseModel]) -> tuple[str, ...]:
    """Names of the runtime parameters of a section."""
    return tuple(name for name, field in fields_of(section).items() if field.change == "runtime")


def parameter_fields(given: Mapping[str, Any]) -> dict[str, ParameterField]:
    """Every parameter of a node to which these flat parameters are given, by its ROS name.

    The names in `cameras`, `dnns` and `dnn.<dnn>.outputs` decide which parameters there are; an invalid list counts as
    not given. A DNN named after a role with defaults has that role, and the model of its role, by default.
    """
    fields: dict[str, ParameterField] = {}

    def add(section: type[BaseModel], prefix: str) -> None:
        fields.update({f"{prefix}{name}": field for name, field in fields_of(section).items()})

    def names_in(parameter: str) -> list[str]:
        field = fields[parameter]
        try:
            return list(field.checked(parameter, given.get(parameter, field.default)))
        except ParameterError:
            return list(field.default)

    add(NodeConfig, "")
    for parameter, names in DEFAULT_NAMES.items():
        fields[parameter] = replace(fields[parameter], default=list(names))
    for camera in names_in("cameras"):
        add(CameraConfig, f"camera.{camera}.")
    for dnn in names_in("dnns"):
        prefix, role = f"dnn.{dnn}.", dnn if dnn in PRESETS else ""
        add(DnnConfig, prefix)
        preset = PRESETS.get(str(given.get(f"{prefix}role", role)))
        for name, default in (("role", role), ("model", preset.model if preset else "")):
            fields[prefix + name] = replace(fields[prefix + name], default=default)
        for output in names_in(f"{prefix}outputs"):
            add(OutputConfig, f"{prefix}output.{output}.")
    return fields


def to_config(flat: Mapping[str, Any]) -> NodeConfig:
    """Flat parameters as a validated configuration; missing ones have their defaults.

    Raises ParameterError with every problem found: unknown names (with the most similar known one), wrong types, values
    out of range.
    """
    config, problems = read_parameters(flat)
    if config is None or problems:
        raise ParameterError(problems)
    return config


def read_parameters(flat: Mapping[str, Any]) -> tuple[NodeConfig | None, list[str]]:
    """As :func:`to_config`, but returns the valid part, which can be checked further, and the problems.

    The valid part has defaults instead of invalid values, and no DNNs whose role or model is invalid. It is None if the
    names of cameras, DNNs or outputs are invalid, or no DNN is left.
    """
    fields = parameter_fields(flat)
    problems, _ = unknown_parameters(flat, fields)
    wrong_names: list[str] = []
    nested: dict[str, Any] = {}
    unusable = set()
    for name, field in fields.items():
        value = flat.get(name, field.default)
        if value == "" and name.endswith(".model"):
            value = field.default  # the role was given later
        try:
            value = field.checked(name, value)
        except ParameterError as error:
            (wrong_names if field.change == "start" else problems).extend(error.problems)
            unusable |= {name.split(".")[1]} if name.endswith((".role", ".model")) else set()
            value = field.default
        *path, leaf = name.split(".")
        section = nested
        for index, part in enumerate(path):
            section = section.setdefault(part if index % 2 else _LISTS[part], {})
        if field.change == "start":
            section.setdefault(leaf, {})
        else:
            section[leaf] = value
    if wrong_names:
        return None, wrong_names
    nested["dnns"] = {dnn: section for dnn, section in nested["dnns"].items() if dnn not in unusable}
    return NodeConfig.model_validate(nested, strict=True) if nested["dnns"] else None, problems


def assign(settings: DnnConfig, name: str, value: Any) -> tuple[str, str]:
    """Set a parameter of a DNN, or of one of its outputs: `output.<output>.<field>`.

    Returns the name of the output ("" for the DNN itself) and that of the field. Has no effect for an output that the
    DNN does not have.
    """
    output, field = name.split(".", 2)[1:] if name.startswith("output.") else ("", name)
    target = settings.outputs.get(output) if output else settings
    if target is not None:
        setattr(target, field, value)
    return output, field


def unknown_parameters(names: Collection[str], fields: Mapping[str, ParameterField]) -> tuple[list[str], list[str]]:
    """Errors and warnings about names that are no parameters of a node with these fields.

    A name that resembles a parameter is an error. A name that resembles none is a warning, because one file may hold
    parameters of several nodes, and so is a parameter of a camera or DNN that is not in use.
    """
    members: dict[str, list[str]] = {"camera": [], "dnn": []}
    for kind, found in members.items():
        found += dict.fromkeys(name.split(".")[1] for name in fields if name.startswith(f"{kind}."))
    errors: list[str] = []
    warnings: list[str] = []
    for name in names:
        if name in fields or name in _RCLPY or name.startswith(_RCLPY_PREFIX):
            continue
        kind, member, leaf = (*name.split(".", 2), "", "")[:3]
        used = members.get(kind, [])
        exists = used and (f"{kind}.{used[0]}.{leaf}" in fields or (kind == "dnn" and leaf.startswith("output.")))
        if exists and member not in used:
            text = f"parameter {name}: {kind} {shown(member)} is not in {_LISTS[kind]} ({', '.join(used)})"
            without = [it for it in used if not any(other.startswith(f"{kind}.{it}.") for other in names)]
            if meant := difflib.get_close_matches(member, without, 1, 0.8):
                errors.append(f"{text}; did you mean {meant[0]}?")
            else:
                warnings.append(f"{text}; not used")
        elif meant := difflib.get_close_matches(name, (*fields, *_RCLPY), 1):
            errors.append(f"parameter {name}: no such parameter; did you mean {meant[0]}?")
        elif kind in (*members, *_LISTS.values()):
            errors.append(f"parameter {name}: no such parameter")
        else:
            warnings.append(f"parameter {name}: not a parameter of this node, ignored")
    return errors, warnings
