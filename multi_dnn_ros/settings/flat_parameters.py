"""Converts between flat ROS parameters and the nested configuration. Nothing here needs ROS."""

from __future__ import annotations

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
)
from multi_dnn_ros.settings.schema import NodeConfig, OutputConfig
from multi_dnn_ros.settings.unknown_parameters import unknown_parameters


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


def to_config(flat: Mapping[str, Any]) -> NodeConfig:
    """Flat parameters as a validated configuration; missing ones have their defaults.

    Raises ParameterError with every problem found: unknown names (with the most similar known one), wrong types, values
    out of range.
    """
    parsed = read_parameters(flat)
    if parsed.config is None or parsed.problems:
        raise ParameterError(parsed.problems)
    return parsed.config


@dataclass(frozen=True)
class ParsedParameters:
    """The valid part of flat parameters, and what is wrong with the rest.

    config: has defaults instead of invalid values, and no DNNs whose role or model is invalid; None: the names of
    cameras or DNNs are invalid, or no DNN is left.
    """

    config: NodeConfig | None
    problems: tuple[str, ...]


def read_parameters(flat: Mapping[str, Any]) -> ParsedParameters:
    """As :func:`to_config`, but returns the problems together with the valid part, which can be checked further."""
    try:
        cameras, dnns, outputs = names_in(flat)
    except ParameterError as error:
        return ParsedParameters(None, error.problems)
    fields = parameter_fields(cameras, dnns, outputs)
    problems, _ = unknown_parameters(flat, cameras, dnns, outputs)
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
        return ParsedParameters(None, tuple(problems))
    config = NodeConfig.model_validate(_nested(values, cameras, dnns, outputs), strict=True)
    return ParsedParameters(config, tuple(problems))


def _nested(
    values: Mapping[str, Any], cameras: Iterable[str], dnns: Iterable[str], outputs: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    nested: dict[str, Any] = {name: values[name] for name in fields_of(NodeConfig)}
    for kind, members in (("camera", cameras), ("dnn", dnns)):
        nested[LISTS[kind]] = {
            member: {name: values[f"{kind}.{member}.{name}"] for name in fields_of(SECTIONS[kind])}
            for member in members
        }
    for dnn, section in nested[LISTS["dnn"]].items():
        section[OUTPUTS] = {
            output: {name: values[f"dnn.{dnn}.output.{output}.{name}"] for name in fields_of(OutputConfig)}
            for output in outputs[dnn]
        }
    return nested
