"""Reads ROS 2 parameter files without ROS: as rcl does, but mistakes are errors. Needs PyYAML only, as launch files do.

rcl applies the sections that match the name of a node. If none does, the node runs with its defaults, without any
message; :func:`require_parameters` makes that an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

PARAMETERS = "ros__parameters"
MAX_BYTES = 1 << 20
#: PyYAML does not convert the errors of int(), float() and datetime() for invalid numbers and dates.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
#: Sections by name: the parameters of each by flat name.
Sections = dict[str, dict[str, Any]]


class ParamsFileError(ValueError):
    """A parameter file without parameters for a node; the message is one line and names the file and the node."""


class StrictLoader(yaml.SafeLoader):
    """Rejects aliases, as the parser of ROS does, and repeated keys, which that parser accepts without a message."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):  # `!!set` or `!!map` in front of something else
            raise yaml.constructor.ConstructorError(None, None, "not a mapping", node.start_mark)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            # The text: a camera may be called `on`.
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in mapping:
                problem = "a key is not a string" if key is None else f"key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


# ROS has no dates.
StrictLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
# YAML 1.1 has no floats such as 1e5, ROS has.
StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9]*(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_params_file(path: str | Path, node: str = "/multi_dnn") -> NodeConfig:
    """The configuration of a node from a parameter file. node: fully qualified name.

    Sections (``<node>: ros__parameters: ...``) apply as in ROS; later ones override earlier ones. If none applies, the
    sections of the only node of this name in another namespace are used: the offline commands have no namespace.
    Raises ParameterError, which names the file, each parameter, its value and what is allowed; OSError.
    """
    from multi_dnn_ros.settings.flat_parameters import names_in, to_config, unknown_parameters
    from multi_dnn_ros.settings.parameter_fields import ParameterError

    try:
        flat = _parameters_of(node, _sections_in(read_text(Path(path))))
        config = to_config(flat)
    except ParameterError as error:
        raise ParameterError([f"{path}: {problem}" for problem in error.problems]) from None
    except _YAML_ERRORS as error:
        raise ParameterError([f"{path}: not a YAML file: {' '.join(str(error).split())}"]) from None
    for warning in unknown_parameters(flat, *names_in(flat))[1]:
        log.warning("%s: %s", path, warning)
    return config


def read_sections(path: str | Path, node: str) -> Sections:
    """The sections of a file. Raises ParamsFileError, which names the node, if it is missing, empty or not YAML."""
    where = f"parameter file {path} of node {node}"
    try:
        text = read_text(Path(path))
        found = _sections_in(text)
    except OSError as error:
        raise ParamsFileError(f"{where}: {error.strerror}") from None
    except _YAML_ERRORS as error:
        raise ParamsFileError(f"{where}: not a parameter file: {' '.join(str(error).split())}") from None
    if not text.strip():
        raise ParamsFileError(f"{where}: the file is empty")
    return found


def require_parameters(path: str | Path, node: str) -> None:
    """Raise ParamsFileError unless the file has a parameter for the node. node: fully qualified name."""
    found = read_sections(path, node)
    where = f"parameter file {path}: no parameters for node {node}"
    if not found:
        raise ParamsFileError(f"{where}; expected a section such as `{node}:` or `/**:` with {PARAMETERS}")
    mine = [name for name in found if applies_to(name, node)]
    if not mine:
        raise ParamsFileError(f"{where}; its sections are for {', '.join(found)}; names are absolute: `{node}:`")
    if not any(found[name] for name in mine):
        raise ParamsFileError(f"{where}; its section {mine[0]} is empty")


def require_parameters_in_any(paths: Sequence[str | Path], node: str) -> list[str]:
    """Raise ParamsFileError unless one of the files has a parameter for the node, or there are no files.

    Returns a warning for each other file: nodes may share files.
    """
    errors = []
    for path in paths:
        read_sections(path, node)  # its errors are fatal for every file
        try:
            require_parameters(path, node)
        except ParamsFileError as error:
            errors.append(str(error))
    if errors and len(errors) == len(paths):
        raise ParamsFileError("; ".join(errors))
    return errors


def applies_to(section: str, node: str) -> bool:
    """Whether ROS applies a section to a node. section, node: names that start with /.

    As in rclpy, `/*` matches one part of a name, `/**` any number of parts.
    """
    pattern = re.escape(section).replace(r"/\*\*", r"(/\w+)*").replace(r"/\*", r"(/\w+)")
    return re.fullmatch(pattern, node) is not None


def files_in(arguments: Sequence[str]) -> list[str]:
    """The files after `--params-file` in the ROS part of a command line."""
    files, inside, previous = [], False, ""
    for word in arguments:
        if inside and previous == "--params-file":
            files.append(word)
        inside = word == "--ros-args" or (inside and word != "--")
        previous = word
    return files


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError if it is too large or not UTF-8."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes; allowed for a parameter file: at most {MAX_BYTES}")
    return path.read_text(encoding="utf-8")


def _sections_in(text: str) -> Sections:
    found: Sections = {}
    for name, parameters in _walk(yaml.load(text, StrictLoader), ""):
        found.setdefault(name, {}).update(_flattened(parameters, ""))
    return found


def _walk(content: object, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The (name, parameters) of every node section. Namespaces may be nested mappings or part of the key."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        if key != PARAMETERS:
            yield from _walk(value, f"{name}/{key.strip('/')}")
        elif not isinstance(value, Mapping):
            raise ValueError(f"{name}: {PARAMETERS} is {value!r}; allowed: a mapping of names to values")
        elif name:
            yield name, value


def _flattened(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parameters_of(node: str, sections: Sections) -> dict[str, Any]:
    mine = [name for name in sections if applies_to(name, node)]
    if not mine:
        last = node.rpartition("/")[2]
        mine = [name for name in sections if name.rpartition("/")[2] in (last, "*", "**")]
        if len([name for name in mine if "*" not in name]) > 1:
            raise ValueError(f"no parameters for node '{node}', but for several others: {', '.join(sections)}")
    flat = {name: value for section in mine for name, value in sections[section].items()}
    if not flat:
        found = ", ".join(sections) or f"none with {PARAMETERS}"
        raise ValueError(f"no parameters for node '{node}'; sections found: {found}")
    return flat
