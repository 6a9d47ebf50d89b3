"""The schema as flat ROS parameters: their names, defaults and limits, and the way between flat and nested.

ROS parameters have no nested structure, so a camera's topic is the parameter ``camera.<camera>.topic`` and the arrays
``cameras`` and ``dnns`` say which names exist. Nothing here needs ROS.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from multi_dnn_ros.settings.roles import PRESETS
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

#: What runs when neither a parameter nor a file says otherwise.
DEFAULT_CAMERAS = ("front",)
DEFAULT_DNNS = tuple(PRESETS)

_NAME = re.compile(r"^[a-z][a-z0-9_]{0,63}$")
_NAME_RULE = "lower-case letters, digits and _, a letter first, 64 at most"
_SECTIONS: dict[str, type[BaseModel]] = {"camera": CameraConfig, "dnn": DnnConfig}
_LISTS = {"camera": "cameras", "dnn": "dnns"}
#: Parameters that rclpy itself reads.
_OF_ROS = ("use_sim_time", "start_type_description_service")
_OF_ROS_BELOW = "qos_overrides."
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, str_strip_whitespace=True)


class ParameterError(ValueError):
    """Parameters that cannot be used: a line each, with name, value and what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class ParameterField:
    """One parameter: what the schema says about it.

    kind: bool, int, float, string, string[] or float[]. runtime: may change while the node is configured.
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
        """`value` in the field's own type (an int becomes a float where one is due); ParameterError names `name`."""
        if self.kind.endswith("[]") and isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            value = list(value)  # tuples and array.array
        elif self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.kind == "float[]" and isinstance(value, list):
            value = [float(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in value]
        try:
            return self.adapter.validate_python(value)
        except ValidationError:
            raise ParameterError([f"parameter {name} is {shown(value)}; allowed: {self.allowed}"]) from None


def shown(value: object) -> str:
    """A value for a message: as in YAML, and never longer than a line."""
    words = {"True": "true", "False": "false", "None": "not set"}
    text = words.get(repr(value), repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."


@lru_cache(maxsize=8)
def fields_of(model: type[BaseModel]) -> Mapping[str, ParameterField]:
    """The fields of one section of the schema, by name, in its order."""
    properties = model.model_json_schema()["properties"]
    return {
        name: _field(properties[name], info.annotation, info.metadata)
        for name, info in model.model_fields.items()
        if not (model is NodeConfig and name in _LISTS.values())
    }


def parameter_fields(cameras: Iterable[str], dnns: Iterable[str]) -> dict[str, ParameterField]:
    """Every parameter of a node with these cameras and DNNs, by its ROS name.

    A DNN with the name of a role that brings defaults has that role, and the model of the role, by default.
    """
    names = list_field("cameras", DEFAULT_CAMERAS), list_field("dnns", DEFAULT_DNNS)
    fields = {**fields_of(NodeConfig), "cameras": names[0], "dnns": names[1]}
    for camera in cameras:
        fields.update({f"camera.{camera}.{name}": field for name, field in fields_of(CameraConfig).items()})
    for dnn in dnns:
        own = {"role": dnn, "model": PRESETS[dnn].model} if dnn in PRESETS else {"role": "", "model": ""}
        for name, field in fields_of(DnnConfig).items():
            fields[f"dnn.{dnn}.{name}"] = replace(field, default=own[name]) if name in own else field
    return fields


def list_field(name: str, default: tuple[str, ...]) -> ParameterField:
    """`cameras` or `dnns`: on the ROS side a list of names."""
    adapter: TypeAdapter[Any] = TypeAdapter(list[str], config=_STRICT)
    return ParameterField(
        kind="string[]",
        default=list(default),
        allowed=f"at least one name, each once: {_NAME_RULE}",
        description=NodeConfig.model_fields[name].description or "",
        runtime=False,
        minimum=None,
        maximum=None,
        adapter=adapter,
    )


def checked_names(name: str, value: Any) -> tuple[str, ...]:
    """The names in the parameter `cameras` or `dnns`; ParameterError when one is malformed or stands there twice."""
    names = list_field(name, ()).checked(name, value)
    problems = [
        f"parameter {name} has the entry {shown(entry)}; allowed: {_NAME_RULE}"
        for entry in names
        if not _NAME.fullmatch(entry)
    ]
    problems += [
        f"parameter {name} has the entry {shown(entry)} twice; every {name[:-1]} needs a name of its own"
        for entry in dict.fromkeys(entry for entry in names if names.count(entry) > 1)
    ]
    if not names:
        problems = [f"parameter {name} is []; allowed: {list_field(name, ()).allowed}"]
    if problems:
        raise ParameterError(problems)
    return tuple(names)


def names_in(flat: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The cameras and the DNNs of a flat configuration; ParameterError."""
    return (
        checked_names("cameras", flat.get("cameras", list(DEFAULT_CAMERAS))),
        checked_names("dnns", flat.get("dnns", list(DEFAULT_DNNS))),
    )


def to_config(flat: Mapping[str, Any]) -> NodeConfig:
    """Flat parameters, the missing ones at their defaults, as a checked configuration.

    Raises ParameterError with every problem found: an unknown name (and the one that was probably meant), a wrong type,
    a value out of range.
    """
    reading = read_parameters(flat)
    if reading.config is None or reading.problems:
        raise ParameterError(reading.problems)
    return reading.config


@dataclass(frozen=True)
class Reading:
    """Flat parameters as far as they can be understood.

    config: wrong values are at their defaults, and DNNs without role or model are left out; None: not even the names of
    cameras and DNNs are right. wrong: the parameters whose values are wrong.
    """

    config: NodeConfig | None
    problems: tuple[str, ...]
    wrong: frozenset[str] = frozenset()


def read_parameters(flat: Mapping[str, Any]) -> Reading:
    """As :func:`to_config`, but what is wrong does not hide the rest, which can be checked further."""
    try:
        cameras, dnns = names_in(flat)
    except ParameterError as error:
        return Reading(None, error.problems)
    fields = parameter_fields(cameras, dnns)
    problems, _ = unknown_parameters(flat, cameras, dnns)
    values: dict[str, Any] = {}
    wrong = set()
    for name, field in fields.items():
        try:
            values[name] = field.checked(name, initial_value(name, field, flat))
        except ParameterError as error:
            problems.extend(error.problems)
            wrong.add(name)
            values[name] = field.default
    dnns = tuple(dnn for dnn in dnns if not {f"dnn.{dnn}.role", f"dnn.{dnn}.model"} & wrong)
    if not dnns:
        return Reading(None, tuple(problems), frozenset(wrong))
    config = NodeConfig.model_validate(_nested(values, cameras, dnns), strict=True)
    return Reading(config, tuple(problems), frozenset(wrong))


def initial_value(name: str, field: ParameterField, given: Mapping[str, Any]) -> Any:
    """The value given for a parameter, else its default, which for a DNN's model is that of its role.

    ROS hands over an empty list in a parameter file as a parameter without a value.
    """
    value = given.get(name, field.default)
    if value is None and field.kind.endswith("[]"):
        return []
    if value == "" and name.startswith("dnn.") and name.endswith(".model"):
        role = str(given.get(f"{name.removesuffix('.model')}.role"))
        return PRESETS[role].model if role in PRESETS else value
    return value


def unknown_parameters(
    flat: Mapping[str, Any], cameras: Sequence[str], dnns: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Messages on the names that are no parameters of a node with these cameras and DNNs: errors, and warnings.

    A name that was probably meant for this node is an error. A name that resembles nothing here is of another node (one
    file may serve several), and a camera or DNN may be configured and yet not be in use: these are warnings.
    """
    members = {"camera": tuple(cameras), "dnn": tuple(dnns)}
    known = parameter_fields(cameras, dnns)
    errors: list[str] = []
    warnings: list[str] = []
    for name, value in flat.items():
        if name in known or name in _OF_ROS or name.startswith(_OF_ROS_BELOW):
            continue
        kind, _, rest = name.partition(".")
        member, _, field = rest.partition(".")
        if kind not in members:
            meant = difflib.get_close_matches(name, (*known, *_OF_ROS), 1)
            if meant or kind in _LISTS.values():
                errors.append(f"parameter {name}: no such parameter{_did_you_mean(meant)}")
            else:
                text = f"parameter {name}: not a parameter of this node, ignored"
                warnings.append(f"{text}; the nearest name is {_nearest(name, known)}")
        elif member in members[kind] or field not in fields_of(_SECTIONS[kind]):
            fields = fields_of(_SECTIONS[kind])
            meant = [f"{kind}.{member}.{match}" for match in difflib.get_close_matches(field, fields, 1)]
            errors.append(
                f"parameter {name}: a {kind} has no {shown(field)}{_did_you_mean(meant)}; it has {', '.join(fields)}"
            )
        elif value != _default(name, kind, member):
            text = f"parameter {name}: {kind} {shown(member)} is not in {_LISTS[kind]} ({', '.join(members[kind])})"
            untouched = [m for m in members[kind] if not any(given.startswith(f"{kind}.{m}.") for given in flat)]
            meant = [f"{kind}.{match}.{field}" for match in difflib.get_close_matches(member, untouched, 1, 0.8)]
            (errors if meant else warnings).append(text + (_did_you_mean(meant) or "; not used"))
    return errors, warnings


def _nearest(name: str, known: Iterable[str]) -> str:
    """The parameter whose name, with or without its camera or DNN, resembles `name` most."""
    last = name.rpartition(".")[2]

    def likeness(parameter: str) -> float:
        own = parameter.rpartition(".")[2]
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, parameter), (last, own)))

    return max(known, key=likeness)


def _default(name: str, kind: str, member: str) -> Any:
    names = {"camera": ((member,), ()), "dnn": ((), (member,))}[kind]
    return parameter_fields(*names)[name].default


def _did_you_mean(names: Iterable[str]) -> str:
    return "".join(f"; did you mean {name}?" for name in names)


def _nested(values: Mapping[str, Any], cameras: Iterable[str], dnns: Iterable[str]) -> dict[str, Any]:
    nested: dict[str, Any] = {name: values[name] for name in fields_of(NodeConfig)}
    for kind, members in (("camera", cameras), ("dnn", dnns)):
        nested[_LISTS[kind]] = {
            member: {name: values[f"{kind}.{member}.{name}"] for name in fields_of(_SECTIONS[kind])}
            for member in members
        }
    return nested


_KINDS = {"boolean": "bool", "integer": "int", "number": "float", "string": "string"}


def _field(schema: Mapping[str, Any], annotation: Any, metadata: Sequence[Any]) -> ParameterField:
    kind = f"{_KINDS[schema['items']['type']]}[]" if schema["type"] == "array" else _KINDS[schema["type"]]
    constrained: Any = Annotated[(annotation, *metadata)] if metadata else annotation
    return ParameterField(
        kind=kind,
        default=schema.get("default", [] if kind.endswith("[]") else ""),
        allowed=_allowed(kind, schema),
        description=schema["description"],
        runtime=bool(schema.get("runtime", False)),
        minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
        maximum=schema.get("maximum"),
        adapter=TypeAdapter(constrained, config=_STRICT),
    )


def _allowed(kind: str, schema: Mapping[str, Any]) -> str:
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if "pattern" in schema:
        return f"text that matches {schema['pattern']}"
    if "exclusiveMinimum" in schema:
        return f"{kind}, more than {schema['exclusiveMinimum']:g}, up to {schema['maximum']:.10g}"
    if "minimum" in schema:
        low, high = (f"{schema[key]:.10g}" for key in ("minimum", "maximum"))
        return f"{kind}, {low} to {high}"
    words = {"bool": "true, false", "string[]": "list of texts", "float[]": "list of numbers"}
    return words.get(kind, "text, not empty" if schema.get("minLength") else "text")
