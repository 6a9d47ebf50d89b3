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

from multi_dnn_ros.settings.forms import ParameterError

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

PARAMETERS = "ros__parameters"
#: PyYAML does not convert the errors of int(), float() and datetime() for invalid numbers and dates.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


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
    Raises ParameterError, which names the file, each parameter, its value and what is allowed.
    """
    from multi_dnn_ros.settings.flat_parameters import parameter_fields, to_config, unknown_parameters

    sections = read_sections(path)
    mine = [name for name in sections if applies_to(name, node)]
    if not mine:
        mine = [name for name in sections if name.rpartition("/")[2] in (node.rpartition("/")[2], "*", "**")]
        if len([name for name in mine if "*" not in name]) > 1:
            mine = []  # of several nodes
    flat = {name: value for section in mine for name, value in sections[section].items()}
    if not flat:
        found = ", ".join(sections) or f"none with {PARAMETERS}"
        raise ParameterError([f"{path}: no parameters for node '{node}'; sections found: {found}"])
    try:
        config = to_config(flat)
    except ParameterError as error:
        raise ParameterError([f"{path}: {problem}" for problem in error.problems]) from None
    for warning in unknown_parameters(flat, parameter_fields(flat))[1]:
        log.warning("%s: %s", path, warning)
    return config


def require_parameters(paths: Sequence[str | Path], node: str) -> list[str]:
    """Raise ParameterError unless one of the files has a parameter for the node, or there are no files.

    node: fully qualified name. Returns a warning for each other file: nodes may share files.
    """
    missing = []
    for path in paths:
        sections = read_sections(path)
        mine = [name for name in sections if applies_to(name, node)]
        if not any(sections[name] for name in mine):
            reason = f"expected a section such as `{node}:` or `/**:` with {PARAMETERS}"
            if mine:
                reason = f"its section {mine[0]} is empty"
            elif sections:
                reason = f"its sections are for {', '.join(sections)}; names are absolute: `{node}:`"
            missing.append(f"parameter file {path}: no parameters for node {node}; {reason}")
    if missing and len(missing) == len(paths):
        raise ParameterError(missing)
    return missing


def applies_to(section: str, node: str) -> bool:
    """Whether ROS applies a section to a node. section, node: names that start with /.

    As in rclpy, `/*` matches one part of a name, `/**` any number of parts.
    """
    pattern = re.escape(section).replace(r"/\*\*", r"(/\w+)*").replace(r"/\*", r"(/\w+)")
    return re.fullmatch(pattern, node) is not None


def read_sections(path: str | Path) -> dict[str, dict[str, Any]]:
    """Parameters by section and flat name. Raises ParameterError if the file is missing, empty or not YAML."""
    found: dict[str, dict[str, Any]] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
        for name, parameters in _walk(yaml.load(text, StrictLoader), ""):
            found.setdefault(name, {}).update(_flattened(parameters, ""))
    except OSError as error:
        raise ParameterError([f"parameter file {path}: {error.strerror}"]) from None
    except _YAML_ERRORS as error:
        raise ParameterError([f"parameter file {path}: not a YAML file: {' '.join(str(error).split())}"]) from None
    if not text.strip():
        raise ParameterError([f"parameter file {path}: the file is empty"])
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
