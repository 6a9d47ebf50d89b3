"""The ROS part of a command line: `--ros-args -p name:=value --params-file f.yaml -r from:=to --log-level debug`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from multi_dnn_ros.standalone.errors import UnknownROSArgsError
from multi_dnn_ros.standalone.log_sites import LoggingSeverity
from multi_dnn_ros.standalone.missing import UnsupportedError, missing
from multi_dnn_ros.standalone.names import RemapRule
from multi_dnn_ros.standalone.yaml_values import ParameterFileError, Value, load_parameter_file, parse_value

ROS_ARGS: Final = "--ros-args"
_END: Final = "--"
_WITH_VALUE: Final = {
    "-p": "param",
    "--param": "param",
    "--params-file": "file",
    "-r": "remap",
    "--remap": "remap",
    "--log-level": "log-level",
    "-e": "enclave",
    "--enclave": "enclave",
    "--log-config-file": "log-config-file",
}
_SWITCHES: Final = {
    "--enable-rosout-logs": ("rosout", True),
    "--disable-rosout-logs": ("rosout", False),
    "--enable-stdout-logs": ("console", True),
    "--disable-stdout-logs": ("console", False),
}


@dataclass
class Arguments:
    """The parsed ROS arguments of a command line."""

    overrides: dict[str, dict[str, Value]] = field(default_factory=dict)
    """Parameter values by node name pattern, in the order in which the patterns first occurred; later patterns win.

    As in rcl, another value for a pattern does not change the pattern's position. `-p` without a node name stands for
    the pattern `/**`.
    """
    remaps: list[RemapRule] = field(default_factory=list)
    default_level: LoggingSeverity | None = None
    levels: dict[str, LoggingSeverity] = field(default_factory=dict)
    rosout: bool = True
    console: bool = True
    enclave: str = "/"
    rest: list[str] = field(default_factory=list)
    """The arguments that are not ROS arguments."""

    def override(self, pattern: str, values: dict[str, Value]) -> None:
        """Add parameter values for the nodes that match a pattern."""
        self.overrides.setdefault(pattern, {}).update(values)

    def overrides_for(self, fully_qualified_name: str) -> dict[str, Value]:
        """Return the parameter values for a node."""
        values: dict[str, Value] = {}
        for pattern, section in self.overrides.items():
            if _pattern(pattern).fullmatch(fully_qualified_name):
                values.update(section)
        return values


def _pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression of a node name with wildcards: `*` one token, `**` any number of tokens."""
    text = text if text.startswith("/") else f"/{text}"
    tokens = {"**": r"(?:/[^/]+)*", "*": r"/[^/]+"}
    return re.compile("".join(tokens.get(token, "/" + re.escape(token)) for token in text[1:].split("/")))


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a complete command line.

    Raises:
        UnknownROSArgsError: names the unknown arguments after --ros-args.
        UnsupportedError: for a ROS argument that the standalone runtime does not implement.
        ParameterFileError, ValueError: for an argument with an invalid value; names it.
    """
    result = Arguments()
    unknown: list[str] = []
    inside = False
    position = 0
    while position < len(argv):
        argument = argv[position]
        position += 1
        if not inside:
            if argument == ROS_ARGS:
                inside = True
            else:
                result.rest.append(argument)
        elif argument == _END:
            inside = False
        elif argument in _SWITCHES:
            name, value = _SWITCHES[argument]
            setattr(result, name, value)
        elif argument == "--disable-external-lib-logs":
            continue  # it disables log files, which do not exist here
        elif argument == "--enable-external-lib-logs":
            raise UnsupportedError(missing("log files (--enable-external-lib-logs)"))
        elif argument in _WITH_VALUE:
            if position == len(argv) or argv[position] == _END:
                raise ValueError(f"ROS argument {argument} needs a value")
            _apply(result, _WITH_VALUE[argument], argument, argv[position])
            position += 1
        elif argument != ROS_ARGS:
            unknown.append(argument)
    if unknown:
        known = ", ".join([*_WITH_VALUE, *_SWITCHES])
        raise UnknownROSArgsError(f"unknown ROS arguments: {' '.join(unknown)}; known: {known}")
    return result


def remove_ros_args(args: Sequence[str]) -> list[str]:
    """Return a command line without its ROS arguments."""
    rest: list[str] = []
    inside = False
    for argument in args:
        if argument == ROS_ARGS:
            inside = True
        elif inside and argument == _END:
            inside = False
        elif not inside:
            rest.append(argument)
    return rest


def _apply(result: Arguments, kind: str, argument: str, value: str) -> None:
    if kind == "param":
        result.override(*_parameter(argument, value))
    elif kind == "file":
        for pattern, values in load_parameter_file(value):
            result.override(pattern, values)
    elif kind == "remap":
        result.remaps.append(RemapRule.parse(value))
    elif kind == "log-level":
        logger, separator, level = value.rpartition(":=")
        severity = _severity(argument, level)
        if separator:
            result.levels[logger] = severity
        else:
            result.default_level = severity
    elif kind == "enclave":
        if not re.fullmatch(r"(?:/[A-Za-z_][A-Za-z0-9_]*)+|/", value):
            raise ValueError(f"{argument} must be an absolute enclave path, not {value!r}")
        result.enclave = value
    else:
        raise UnsupportedError(missing(f"logging configuration files ({argument})"))


def _parameter(argument: str, text: str) -> tuple[str, dict[str, Value]]:
    name, separator, value = text.partition(":=")
    node, colon, parameter = name.rpartition(":")
    if not separator or not parameter or (colon and not node):
        raise ValueError(f"{argument} must have the form [node:]name:=value, not {text!r}")
    try:
        return (node if colon else "/**"), {parameter: parse_value(value)}
    except ParameterFileError as error:
        raise ParameterFileError(f"{argument} {parameter}: {error}") from error


def _severity(argument: str, level: str) -> LoggingSeverity:
    try:
        return LoggingSeverity[level.upper()]
    except KeyError:
        known = ", ".join(severity.name for severity in LoggingSeverity if severity)
        raise ValueError(f"{argument} must be one of {known}, not {level!r}") from None
