"""Converts flat ROS parameters to the nested configuration. Nothing here needs ROS."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.settings.parameter_fields import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    LISTS,
    OUTPUTS,
    SECTIONS,
    ParameterError,
    checked_names,
    fields_of,
    initial_value,
    parameter_fields,
    shown,
)
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig, OutputConfig

#: Parameters of a DNN that have no effect if it has outputs, which have these parameters themselves.
REPLACED_BY_OUTPUTS = ("decoder", "keep", "score_threshold", "iou_threshold", "max_detections")
#: Parameters that rclpy reads itself, and the prefix of others.
_RCLPY = ("use_sim_time", "start_type_description_service")
_RCLPY_PREFIX = "qos_overrides."


@dataclass(frozen=True)
class ParsedParameters:
    """The valid part of flat parameters, and what is wrong with the rest.

    config: has defaults instead of invalid values, and no DNNs whose role or model is invalid; None: the names of
    cameras or DNNs are invalid, or no DNN is left.
    """

    config: NodeConfig | None
    problems: tuple[str, ...]


def to_config(flat: Mapping[str, Any]) -> NodeConfig:
    """Flat parameters as a validated configuration; missing ones have their defaults.

    Raises ParameterError with every problem found: unknown names (with the most similar known one), wrong types, values
    out of range.
    """
    parsed = read_parameters(flat)
    if parsed.config is None or parsed.problems:
        raise ParameterError(parsed.problems)
    return parsed.config


def read_parameters(flat: Mapping[str, Any]) -> ParsedParameters:
    """As :func:`to_config`, but returns the problems together with the valid part, which can be checked further."""
    try:
        cameras, dnns, outputs = names_in(flat)
    except ParameterError as error:
        return ParsedParameters(None, error.problems)
    problems, _ = unknown_parameters(flat, cameras, dnns, outputs)
    values: dict[str, Any] = {}
    wrong = set()
    for name, field in parameter_fields(cameras, dnns, outputs).items():
        try:
            values[name] = field.checked(name, initial_value(name, field, flat))
        except ParameterError as error:
            problems.extend(error.problems)
            wrong.add(name)
            values[name] = field.default
    dnns = tuple(dnn for dnn in dnns if not {f"dnn.{dnn}.role", f"dnn.{dnn}.model"} & wrong)
    if not dnns:
        return ParsedParameters(None, tuple(problems))
    config = NodeConfig.model_validate(_nested(values, cameras, dnns, outputs), strict=True)
    return ParsedParameters(config, tuple(problems))


def names_in(flat: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The cameras and the DNNs of a flat configuration, and the outputs of each DNN. Raises ParameterError."""
    problems: list[str] = []

    def names(parameter: str, default: Sequence[str]) -> tuple[str, ...]:
        try:
            return checked_names(parameter, flat.get(parameter, list(default)))
        except ParameterError as error:
            problems.extend(error.problems)
            return ()

    cameras, dnns = names("cameras", DEFAULT_CAMERAS), names("dnns", DEFAULT_DNNS)
    outputs = {dnn: names(f"dnn.{dnn}.{OUTPUTS}", ()) for dnn in dnns}
    if problems:
        raise ParameterError(problems)
    return cameras, dnns, outputs


def _nested(
    values: Mapping[str, Any], cameras: Iterable[str], dnns: Iterable[str], outputs: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    def section(model: Any, prefix: str) -> dict[str, Any]:
        return {name: values[f"{prefix}{name}"] for name in fields_of(model)}

    nested = section(NodeConfig, "")
    for kind, members in (("camera", cameras), ("dnn", dnns)):
        nested[LISTS[kind]] = {member: section(SECTIONS[kind], f"{kind}.{member}.") for member in members}
    for dnn, settings in nested["dnns"].items():
        settings[OUTPUTS] = {output: section(OutputConfig, f"dnn.{dnn}.output.{output}.") for output in outputs[dnn]}
    return nested


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


def unknown_parameters(
    flat: Mapping[str, Any],
    cameras: Sequence[str],
    dnns: Sequence[str],
    outputs: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[str], list[str]]:
    """Errors and warnings about names that are no parameters of a node with these cameras and DNNs. outputs: by DNN.

    A name that resembles a parameter is an error. A name that resembles none is a warning, because one file may hold
    parameters of several nodes, and so is a parameter of a camera or DNN that is not in use.
    """
    members = {"camera": tuple(cameras), "dnn": tuple(dnns)}
    known = parameter_fields(cameras, dnns, outputs)
    errors: list[str] = []
    warnings: list[str] = []
    for name in flat:
        if name in known or name in _RCLPY or name.startswith(_RCLPY_PREFIX):
            continue
        kind, _, rest = name.partition(".")
        member, _, field = rest.partition(".")
        if kind in members and member not in members[kind] and _is_field(kind, field):
            text = f"parameter {name}: {kind} {shown(member)} is not in {LISTS[kind]} ({', '.join(members[kind])})"
            unused = [each for each in members[kind] if not any(key.startswith(f"{kind}.{each}.") for key in flat)]
            meant = difflib.get_close_matches(member, unused, 1, 0.8)
            (errors if meant else warnings).append(
                f"{text}; did you mean {meant[0]}?" if meant else f"{text}; not used"
            )
        elif meant := difflib.get_close_matches(name, (*known, *_RCLPY), 1):
            errors.append(f"parameter {name}: no such parameter; did you mean {meant[0]}?")
        elif kind in members or kind in LISTS.values():
            errors.append(f"parameter {name}: no such parameter")
        else:
            warnings.append(f"parameter {name}: not a parameter of this node, ignored")
    return errors, warnings


def _is_field(kind: str, field: str) -> bool:
    """Whether a camera or DNN may have this parameter."""
    return field in fields_of(SECTIONS[kind]) or (kind == "dnn" and field.startswith("output."))
